-- The whole schema at revision 0132, as a migrated database has it: what all the revisions come to. `make docs`
-- writes this file, and a test holds it against a database. Reasons stand beside the statements in migrations/sql/.
-- Left out are the roles, the owner of the tables, and how texts are compressed, which is as the server can.

create type context_limits as (
    result_cap integer,
    total_token_budget integer,
    reserved_output_tokens integer
);

create type turn_context as (
    blocks json,
    carried_max_tokens integer,
    policy jsonb
);

create type turn_facts as (
    total_tokens integer,
    newer_tokens integer,
    seen_tokens integer,
    total_bytes integer,
    longest_result integer,
    newest_result integer,
    after_answer integer,
    sound boolean,
    leading_results text[],
    trailing_calls text[],
    exchanges integer,
    last_request integer,
    has_request boolean,
    ends_in_loop boolean,
    thinking_in_loop boolean
);

create type turn_messages as (
    roles text[],
    contents json[],
    tokens integer[],
    hidden integer[],
    bytes integer[],
    result_chars text[],
    requests boolean[],
    thinking boolean[]
);

create type turn_usage as (
    input_tokens integer,
    output_tokens integer,
    version integer
);

create table alembic_version (
    version_num character varying(32) not null,
    constraint alembic_version_pkc PRIMARY KEY (version_num)
);
grant select on alembic_version to palimpsest_service;

create table api_keys (
    id uuid not null,
    tenant_id uuid not null,
    name text not null,
    secret_hash bytea not null,
    scopes text[] not null,
    created_at timestamp with time zone not null default now(),
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    last_used_at timestamp with time zone,
    replaced_by uuid,
    constraint pk_api_keys PRIMARY KEY (id),
    constraint fk_api_keys_tenant_id_tenants FOREIGN KEY (tenant_id) REFERENCES tenants(id)
);
alter table api_keys alter column name set statistics 0, alter column secret_hash set statistics 0;
CREATE INDEX ix_api_keys_tenant_id ON public.api_keys USING btree (tenant_id);
alter table api_keys enable row level security;
alter table api_keys force row level security;
create policy background on api_keys for select to palimpsest_background using (true);
create policy background_notes on api_keys for update to palimpsest_background using (true) with check (true);
create policy tenant on api_keys for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
CREATE TRIGGER api_keys_stay_closed BEFORE UPDATE OF revoked_at, expires_at ON public.api_keys FOR EACH ROW EXECUTE FUNCTION guard_keys();
grant select (id, tenant_id, secret_hash, scopes, expires_at, revoked_at, last_used_at), update (last_used_at) on api_keys to palimpsest_background;
grant insert, select, update (expires_at, revoked_at, replaced_by) on api_keys to palimpsest_service;

create table assemblies (
    conversation_id uuid not null,
    tenant_id uuid not null,
    call text not null,
    snapshot_version integer not null,
    system_tokens integer not null,
    prior_context_tokens integer not null,
    turn_context_tokens integer not null,
    history_tokens integer not null,
    user_message_tokens integer not null,
    reserved_output_tokens integer not null,
    total_token_budget integer not null,
    exchanges_total integer not null,
    exchanges_kept integer not null,
    rounds_dropped boolean not null,
    responses_truncated integer not null,
    blocks_shortened integer not null,
    warnings integer not null,
    assembled_at timestamp with time zone not null,
    constraint pk_assemblies PRIMARY KEY (conversation_id),
    constraint ck_assemblies_call CHECK ((call = ANY (ARRAY['payload'::text, 'context'::text]))),
    constraint fk_assemblies_conversation_id_conversations FOREIGN KEY (conversation_id) REFERENCES conversations(id)
);
alter table assemblies enable row level security;
alter table assemblies force row level security;
create policy background_erases on assemblies for all to palimpsest_background using (true) with check (true);
create policy tenant on assemblies for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
grant delete, select (conversation_id) on assemblies to palimpsest_background;
grant insert, select, update (call, snapshot_version, system_tokens, prior_context_tokens, turn_context_tokens, history_tokens, user_message_tokens, reserved_output_tokens, total_token_budget, exchanges_total, exchanges_kept, rounds_dropped, responses_truncated, blocks_shortened, warnings, assembled_at) on assemblies to palimpsest_service;

create table console_sessions (
    token_hash bytea not null,
    tenant_id uuid not null,
    key_id uuid not null,
    is_ticket boolean not null default false,
    created_at timestamp with time zone not null default now(),
    expires_at timestamp with time zone not null,
    ended_at timestamp with time zone,
    constraint pk_console_sessions PRIMARY KEY (token_hash),
    constraint fk_console_sessions_key_id_api_keys FOREIGN KEY (key_id) REFERENCES api_keys(id)
);
alter table console_sessions alter column token_hash set statistics 0;
CREATE INDEX ix_console_sessions_expires_at ON public.console_sessions USING btree (expires_at);
alter table console_sessions enable row level security;
alter table console_sessions force row level security;
create policy background on console_sessions for all to palimpsest_background using (true) with check (true);
create policy tenant on console_sessions for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
CREATE TRIGGER console_sessions_stay_ended BEFORE UPDATE OF ended_at ON public.console_sessions FOR EACH ROW EXECUTE FUNCTION guard_sessions();
grant delete, select, update (ended_at) on console_sessions to palimpsest_background;
grant insert, select, update (ended_at) on console_sessions to palimpsest_service;

create table context_blocks (
    id uuid not null,
    tenant_id uuid not null,
    conversation_id uuid not null,
    seq integer not null,
    position integer not null,
    source text not null,
    title text not null,
    text text not null,
    digest bytea not null,
    outline text not null,
    summary text,
    summarized_at timestamp with time zone,
    tokens integer not null,
    outline_tokens integer not null,
    created_at timestamp with time zone not null default now(),
    carried_until integer,
    superseded_at timestamp with time zone,
    constraint pk_context_blocks PRIMARY KEY (id),
    constraint uq_context_blocks_conversation_id_seq_position UNIQUE (conversation_id, seq, "position"),
    constraint fk_context_blocks_conversation_id_conversations FOREIGN KEY (conversation_id) REFERENCES conversations(id)
);
alter table context_blocks alter column source set statistics 0, alter column title set statistics 0, alter column text set statistics 0, alter column digest set statistics 0, alter column outline set statistics 0, alter column summary set statistics 0;
CREATE INDEX ix_context_blocks_carried ON public.context_blocks USING btree (conversation_id) WHERE ((carried_until IS NULL) AND (superseded_at IS NULL));
CREATE INDEX ix_context_blocks_conversation_id_digest ON public.context_blocks USING btree (conversation_id, digest);
alter table context_blocks enable row level security;
alter table context_blocks force row level security;
create policy background_erases on context_blocks for all to palimpsest_background using (true) with check (true);
create policy tenant on context_blocks for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
CREATE TRIGGER context_blocks_not_erased AFTER INSERT ON public.context_blocks FOR EACH ROW EXECUTE FUNCTION guard_erased();
grant delete, select (conversation_id) on context_blocks to palimpsest_background;
grant insert, select, update (summary, summarized_at, carried_until, superseded_at) on context_blocks to palimpsest_service;

create table conversations (
    id uuid not null,
    tenant_id uuid not null,
    external_id text,
    user_ref text,
    model text,
    system json,
    tools json,
    policy jsonb not null default '{}'::jsonb,
    metadata jsonb not null default '{}'::jsonb,
    created_at timestamp with time zone not null default now(),
    next_seq integer not null default 0,
    turn_count integer not null default 0,
    revision bigint not null default 0,
    edits integer not null default 0,
    head_version integer not null default 0,
    last_version integer not null default 0,
    pending_version integer,
    covers_through integer not null default '-1'::integer,
    head_moved_at integer not null default '-1'::integer,
    context_tokens integer not null default 0,
    context_messages integer not null default 0,
    context_bytes bigint not null default 0,
    context_exchanges integer not null default 0,
    last_request integer not null default '-1'::integer,
    fixed_tokens integer not null default 0,
    token_ratio real not null default 1,
    ratio_samples real[] not null default '{1,1}'::real[],
    measured_tokens integer,
    measured_input_tokens integer,
    measured_version integer,
    open_calls text[] not null default '{}'::text[],
    in_loop boolean not null default false,
    loop_has_thinking boolean not null default false,
    broken_through integer not null default '-1'::integer,
    strip_thinking_through integer not null default '-1'::integer,
    check_due_at timestamp with time zone,
    check_request_id uuid,
    newest_result integer not null default '-1'::integer,
    results_cut_through integer not null default '-1'::integer,
    tool_results_hold integer not null default 0,
    summary_hold integer not null default 0,
    trim_hold integer not null default 0,
    overflows integer not null default 0,
    result_cap integer generated always as (((policy ->> 'max_tool_result_chars'::text))::integer) stored,
    carried_tokens integer not null default 0,
    turn_context_tokens integer not null default 0,
    held_by_restore boolean not null default false,
    counted_cap integer,
    erased_at timestamp with time zone,
    left_out text,
    unstored_tokens integer not null default 0,
    last_count integer[],
    measured_seq integer not null default 0,
    restored_over_budget boolean not null default false,
    shape text,
    mixed_shapes boolean not null default false,
    other_model_through integer not null default '-1'::integer,
    rules jsonb,
    newest_media integer not null default '-1'::integer,
    media_checked_through integer not null default '-1'::integer,
    constraint pk_conversations PRIMARY KEY (id),
    constraint ck_conversations_shape CHECK ((shape = ANY (ARRAY['chat'::text, 'responses'::text]))),
    constraint fk_conversations_tenant_id_tenants FOREIGN KEY (tenant_id) REFERENCES tenants(id)
) with (fillfactor=70, toast_tuple_target=512, autovacuum_vacuum_scale_factor=0.02);
alter table conversations alter column external_id set statistics 0, alter column user_ref set statistics 0, alter column model set statistics 0, alter column policy set statistics 0, alter column metadata set statistics 0, alter column open_calls set statistics 0, alter column left_out set statistics 0, alter column rules set statistics 0;
CREATE INDEX ix_conversations_check_due_at ON public.conversations USING btree (check_due_at) WHERE (check_due_at IS NOT NULL);
CREATE INDEX ix_conversations_tenant_id_id ON public.conversations USING btree (tenant_id, id);
CREATE INDEX ix_conversations_user_ref ON public.conversations USING btree (tenant_id, user_ref, id) WHERE (user_ref IS NOT NULL);
CREATE UNIQUE INDEX uq_conversations_external_id ON public.conversations USING btree (tenant_id, external_id) WHERE (external_id IS NOT NULL);
alter table conversations enable row level security;
alter table conversations force row level security;
create policy auditor on conversations for select to palimpsest_auditor using (true);
create policy background on conversations for all to palimpsest_background using (true) with check (true);
create policy tenant on conversations for all to public using (((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid) AND (erased_at IS NULL))) with check (((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid) AND (erased_at IS NULL)));
CREATE TRIGGER conversations_forget_gateway AFTER UPDATE OF erased_at ON public.conversations FOR EACH ROW WHEN ((new.erased_at IS NOT NULL)) EXECUTE FUNCTION forget_gateway();
CREATE TRIGGER conversations_forget_media BEFORE UPDATE OF edits, head_version, erased_at ON public.conversations FOR EACH ROW WHEN ((old.newest_media >= 0)) EXECUTE FUNCTION forget_media();
CREATE TRIGGER conversations_forget_recall_requests AFTER UPDATE OF erased_at ON public.conversations FOR EACH ROW WHEN ((new.erased_at IS NOT NULL)) EXECUTE FUNCTION forget_recall_requests();
CREATE TRIGGER conversations_forget_recall_segments AFTER UPDATE OF erased_at ON public.conversations FOR EACH ROW WHEN ((new.erased_at IS NOT NULL)) EXECUTE FUNCTION forget_recall_segments();
CREATE TRIGGER conversations_forget_turn_usages AFTER UPDATE OF erased_at ON public.conversations FOR EACH ROW WHEN ((new.erased_at IS NOT NULL)) EXECUTE FUNCTION forget_turn_usages();
CREATE TRIGGER conversations_forget_waiting_snapshots AFTER UPDATE OF erased_at ON public.conversations FOR EACH ROW WHEN ((new.erased_at IS NOT NULL)) EXECUTE FUNCTION forget_waiting_snapshots();
CREATE TRIGGER conversations_list_rules BEFORE UPDATE OF edits, erased_at ON public.conversations FOR EACH ROW WHEN ((old.rules IS NOT NULL)) EXECUTE FUNCTION list_rules_of_rest();
grant select (id, tenant_id, external_id, user_ref, created_at, turn_count, head_version, context_tokens, erased_at) on conversations to palimpsest_auditor;
grant select (id, tenant_id, model, policy, revision, edits, head_version, pending_version, covers_through, context_tokens, context_bytes, last_request, fixed_tokens, token_ratio, measured_tokens, measured_version, check_due_at, check_request_id, newest_result, results_cut_through, tool_results_hold, summary_hold, trim_hold, carried_tokens, held_by_restore, counted_cap, erased_at, unstored_tokens, measured_seq, newest_media, media_checked_through), update (external_id, user_ref, model, system, tools, policy, metadata, revision, head_version, pending_version, covers_through, open_calls, check_due_at, check_request_id, erased_at) on conversations to palimpsest_background;
grant insert, select, update on conversations to palimpsest_service;

create table erasures (
    id uuid not null,
    tenant_id uuid not null,
    number integer not null,
    conversation_id uuid not null,
    asked_for text not null,
    key_id uuid,
    request_id uuid,
    message_count integer not null,
    snapshot_count integer not null,
    context_block_count integer not null,
    pin_count integer not null,
    run_count integer not null,
    step_count integer not null,
    batch_count integer not null,
    delivery_count integer not null,
    idempotency_key_count integer not null,
    proof bytea not null,
    erased_at timestamp with time zone not null,
    constraint pk_erasures PRIMARY KEY (id),
    constraint uq_erasures_conversation_id UNIQUE (conversation_id),
    constraint uq_erasures_tenant_id_number UNIQUE (tenant_id, number),
    constraint ck_erasures_asked_for CHECK ((asked_for = ANY (ARRAY['conversation'::text, 'user'::text]))),
    constraint fk_erasures_conversation_id_conversations FOREIGN KEY (conversation_id) REFERENCES conversations(id),
    constraint fk_erasures_tenant_id_tenants FOREIGN KEY (tenant_id) REFERENCES tenants(id)
);
CREATE INDEX ix_erasures_tenant_id_id ON public.erasures USING btree (tenant_id, id);
alter table erasures enable row level security;
alter table erasures force row level security;
create policy background on erasures for all to palimpsest_background using (true) with check (true);
create policy tenant on erasures for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
CREATE TRIGGER erasures_immutable BEFORE DELETE OR UPDATE ON public.erasures FOR EACH ROW EXECUTE FUNCTION guard_snapshots();
CREATE TRIGGER erasures_no_truncate BEFORE TRUNCATE ON public.erasures FOR EACH STATEMENT EXECUTE FUNCTION guard_snapshots();
grant insert, select on erasures to palimpsest_background;
grant select on erasures to palimpsest_service;

create table gateway_conversations (
    conversation_id uuid not null,
    tenant_id uuid not null,
    circle bytea not null,
    branch_of uuid,
    created_at timestamp with time zone not null default now(),
    constraint pk_gateway_conversations PRIMARY KEY (conversation_id),
    constraint fk_gateway_conversations_conversation_id_conversations FOREIGN KEY (conversation_id) REFERENCES conversations(id)
);
CREATE INDEX ix_gateway_conversations_circle ON public.gateway_conversations USING btree (tenant_id, circle, conversation_id);
alter table gateway_conversations enable row level security;
alter table gateway_conversations force row level security;
create policy background_erases on gateway_conversations for all to palimpsest_background using (true) with check (true);
create policy tenant on gateway_conversations for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
CREATE TRIGGER gateway_conversations_not_erased AFTER INSERT ON public.gateway_conversations FOR EACH ROW EXECUTE FUNCTION guard_erased();
grant delete, select (conversation_id) on gateway_conversations to palimpsest_background;
grant insert, select on gateway_conversations to palimpsest_service;

create table gateway_prefixes (
    tenant_id uuid not null,
    conversation_id uuid not null,
    seq integer not null,
    key bytea not null,
    outcome text,
    saved_tokens integer,
    head_version integer,
    retried boolean,
    aborted boolean,
    answered_at timestamp with time zone,
    constraint pk_gateway_prefixes PRIMARY KEY (conversation_id, seq),
    constraint ck_gateway_prefixes_outcome CHECK ((outcome = ANY (ARRAY['compacted'::text, 'unchanged'::text, 'failed_open'::text]))),
    constraint fk_gateway_prefixes_conversation_id_conversations FOREIGN KEY (conversation_id) REFERENCES conversations(id)
);
CREATE INDEX ix_gateway_prefixes_key ON public.gateway_prefixes USING btree (tenant_id, key, conversation_id);
alter table gateway_prefixes enable row level security;
alter table gateway_prefixes force row level security;
create policy background_erases on gateway_prefixes for all to palimpsest_background using (true) with check (true);
create policy tenant on gateway_prefixes for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
CREATE TRIGGER gateway_prefixes_not_erased AFTER INSERT ON public.gateway_prefixes FOR EACH ROW EXECUTE FUNCTION guard_erased();
grant delete, select (conversation_id) on gateway_prefixes to palimpsest_background;
grant insert, select, update (key, outcome, saved_tokens, head_version, retried, aborted, answered_at) on gateway_prefixes to palimpsest_service;

create table gateway_recalls (
    tenant_id uuid not null,
    conversation_id uuid not null,
    seq integer not null,
    through_seq integer not null,
    resent integer,
    shown json not null,
    results json not null,
    response_id text,
    last_response_id text,
    constraint pk_gateway_recalls PRIMARY KEY (conversation_id, seq),
    constraint fk_gateway_recalls_conversation_id_conversations FOREIGN KEY (conversation_id) REFERENCES conversations(id)
);
alter table gateway_recalls alter column response_id set statistics 0, alter column last_response_id set statistics 0;
CREATE INDEX ix_gateway_recalls_response ON public.gateway_recalls USING btree (tenant_id, response_id) WHERE (response_id IS NOT NULL);
alter table gateway_recalls enable row level security;
alter table gateway_recalls force row level security;
create policy background_erases on gateway_recalls for all to palimpsest_background using (true) with check (true);
create policy tenant on gateway_recalls for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
CREATE TRIGGER gateway_recalls_not_erased AFTER INSERT ON public.gateway_recalls FOR EACH ROW EXECUTE FUNCTION guard_erased();
grant delete, select (conversation_id) on gateway_recalls to palimpsest_background;
grant insert, select, update (resent) on gateway_recalls to palimpsest_service;

create table idempotency_keys (
    tenant_id uuid not null,
    conversation_id uuid not null,
    key text not null,
    body_hash bytea not null,
    first_seq integer not null,
    last_seq integer not null,
    context_tokens integer not null,
    queued boolean not null,
    created_at timestamp with time zone not null default now(),
    constraint pk_idempotency_keys PRIMARY KEY (conversation_id, key)
);
alter table idempotency_keys alter column key set statistics 0, alter column body_hash set statistics 0;
CREATE INDEX ix_idempotency_keys_created_at ON public.idempotency_keys USING btree (created_at);
alter table idempotency_keys enable row level security;
alter table idempotency_keys force row level security;
create policy background on idempotency_keys for all to palimpsest_background using (true) with check (true);
create policy tenant on idempotency_keys for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
grant delete, select (ctid, conversation_id, created_at), update (created_at) on idempotency_keys to palimpsest_background;
grant insert, select on idempotency_keys to palimpsest_service;

create table message_media (
    tenant_id uuid not null,
    conversation_id uuid not null,
    seq integer not null,
    images integer not null,
    image_side integer not null,
    documents integer not null,
    document_pages integer not null,
    bytes bigint not null,
    constraint pk_message_media PRIMARY KEY (conversation_id, seq),
    constraint fk_message_media_conversation_id_conversations FOREIGN KEY (conversation_id) REFERENCES conversations(id)
);
alter table message_media enable row level security;
alter table message_media force row level security;
create policy background on message_media for all to palimpsest_background using (true) with check (true);
create policy tenant on message_media for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
CREATE TRIGGER message_media_not_erased AFTER INSERT ON public.message_media FOR EACH ROW EXECUTE FUNCTION guard_erased();
grant delete, select on message_media to palimpsest_background;
grant insert, select on message_media to palimpsest_service;

create table messages (
    tenant_id uuid not null,
    conversation_id uuid not null,
    seq integer not null,
    role text not null,
    content json not null,
    tokens integer not null,
    view_tokens integer not null,
    bytes integer not null,
    result_chars integer[],
    is_request boolean not null,
    has_thinking boolean not null,
    created_at timestamp with time zone not null default now(),
    superseded_at timestamp with time zone,
    shape text,
    sent json,
    said_at timestamp with time zone,
    is_undated boolean,
    constraint pk_messages PRIMARY KEY (conversation_id, seq),
    constraint ck_messages_role CHECK ((role = ANY (ARRAY['user'::text, 'assistant'::text]))),
    constraint ck_messages_shape CHECK (COALESCE((shape = ANY (ARRAY['chat'::text, 'responses'::text])), (sent IS NULL)))
);
alter table messages alter column sent set statistics 0;
alter table messages enable row level security;
alter table messages force row level security;
create policy auditor on messages for select to palimpsest_auditor using (true);
create policy background_erases on messages for all to palimpsest_background using (true) with check (true);
create policy tenant on messages for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
CREATE TRIGGER messages_append_only BEFORE DELETE OR UPDATE ON public.messages FOR EACH ROW EXECUTE FUNCTION guard_messages();
CREATE TRIGGER messages_no_truncate BEFORE TRUNCATE ON public.messages FOR EACH STATEMENT EXECUTE FUNCTION guard_snapshots();
grant select (tenant_id, conversation_id, seq, role, tokens, created_at, superseded_at) on messages to palimpsest_auditor;
grant delete, select (conversation_id, seq, created_at, superseded_at) on messages to palimpsest_background;
grant insert, select, update (superseded_at, shape, sent) on messages to palimpsest_service;

create table model_batches (
    id uuid not null,
    tenant_id uuid not null,
    conversation_id uuid not null,
    state text not null default 'wanted'::text,
    request_id uuid,
    base_version integer,
    first_seq integer,
    last_seq integer,
    zone_messages integer,
    part_ends integer[],
    fingerprint text,
    canary text,
    model text,
    prompt_version text,
    answer_tokens integer,
    provider_batch_id text,
    answers text[],
    model_calls integer not null default 0,
    model_input_tokens integer,
    model_output_tokens integer,
    cost_usd numeric(14,6),
    attempts integer not null default 0,
    failures integer not null default 0,
    next_attempt_at timestamp with time zone not null default now(),
    run_id uuid,
    reason text,
    error text,
    created_at timestamp with time zone not null default now(),
    sent_at timestamp with time zone,
    expires_at timestamp with time zone,
    finished_at timestamp with time zone,
    reserved_tokens bigint not null default 0,
    reserved_cost_usd numeric(14,6) not null default 0,
    constraint pk_model_batches PRIMARY KEY (id),
    constraint ck_model_batches_state CHECK ((state = ANY (ARRAY['wanted'::text, 'sending'::text, 'submitted'::text, 'canceling'::text, 'ended'::text, 'committed'::text, 'discarded'::text, 'superseded'::text, 'failed'::text]))),
    constraint fk_model_batches_conversation_id_conversations FOREIGN KEY (conversation_id) REFERENCES conversations(id) ON DELETE CASCADE,
    constraint fk_model_batches_run_id_runs FOREIGN KEY (run_id) REFERENCES runs(id) ON DELETE SET NULL
);
alter table model_batches alter column fingerprint set statistics 0, alter column canary set statistics 0, alter column answers set statistics 0, alter column error set statistics 0;
CREATE INDEX ix_model_batches_conversation_id_id ON public.model_batches USING btree (conversation_id, id);
CREATE INDEX ix_model_batches_due ON public.model_batches USING btree (next_attempt_at) WHERE (state = ANY (ARRAY['wanted'::text, 'sending'::text, 'submitted'::text, 'canceling'::text, 'ended'::text]));
CREATE INDEX ix_model_batches_provider_batch_id ON public.model_batches USING btree (provider_batch_id);
CREATE INDEX ix_model_batches_run_id ON public.model_batches USING btree (run_id);
CREATE UNIQUE INDEX uq_model_batches_open ON public.model_batches USING btree (conversation_id) WHERE (state = ANY (ARRAY['wanted'::text, 'sending'::text, 'submitted'::text, 'canceling'::text, 'ended'::text]));
alter table model_batches enable row level security;
alter table model_batches force row level security;
create policy background on model_batches for all to palimpsest_background using (true) with check (true);
create policy tenant on model_batches for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
CREATE TRIGGER model_batches_not_erased BEFORE INSERT OR UPDATE ON public.model_batches FOR EACH ROW EXECUTE FUNCTION guard_erased_batches();
grant delete, insert, select (id, tenant_id, conversation_id, state, provider_batch_id, next_attempt_at, finished_at), update (state, fingerprint, canary, answers, attempts, failures, next_attempt_at, reason, error, finished_at) on model_batches to palimpsest_background;
grant insert, select, update (state, base_version, first_seq, last_seq, zone_messages, part_ends, fingerprint, canary, model, prompt_version, answer_tokens, provider_batch_id, answers, model_calls, model_input_tokens, model_output_tokens, cost_usd, attempts, failures, next_attempt_at, run_id, reason, error, sent_at, expires_at, finished_at, reserved_tokens, reserved_cost_usd) on model_batches to palimpsest_service;

create table model_usage (
    tenant_id uuid not null,
    day date not null,
    model_calls bigint not null default 0,
    input_tokens bigint not null default 0,
    output_tokens bigint not null default 0,
    cost_usd numeric(16,6) not null default 0,
    constraint pk_model_usage PRIMARY KEY (tenant_id, day)
) with (fillfactor=50);
alter table model_usage enable row level security;
alter table model_usage force row level security;
create policy background on model_usage for all to palimpsest_background using (true) with check (true);
create policy tenant on model_usage for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
grant insert, select, update on model_usage to palimpsest_background;
grant select on model_usage to palimpsest_service;

create table operator_actions (
    id uuid not null,
    tenant_id uuid not null,
    key_id uuid not null,
    action text not null,
    outcome text not null,
    conversation_id uuid,
    run_id uuid,
    version integer,
    request_id uuid not null,
    created_at timestamp with time zone not null default now(),
    subject_key_id uuid,
    subject_id uuid,
    constraint pk_operator_actions PRIMARY KEY (id),
    constraint ck_operator_actions_action CHECK ((action = ANY (ARRAY['sign_in'::text, 'sign_out'::text, 'compact'::text, 'restore'::text, 'retry'::text, 'demo'::text, 'key_create'::text, 'key_rotate'::text, 'key_revoke'::text, 'erase'::text, 'export'::text, 'webhook_create'::text, 'webhook_remove'::text, 'delivery_retry'::text])))
);
CREATE INDEX ix_operator_actions_tenant_id_id ON public.operator_actions USING btree (tenant_id, id);
alter table operator_actions enable row level security;
alter table operator_actions force row level security;
create policy tenant on operator_actions for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
CREATE TRIGGER operator_actions_immutable BEFORE DELETE OR UPDATE ON public.operator_actions FOR EACH ROW EXECUTE FUNCTION guard_snapshots();
CREATE TRIGGER operator_actions_no_truncate BEFORE TRUNCATE ON public.operator_actions FOR EACH STATEMENT EXECUTE FUNCTION guard_snapshots();
grant insert, select on operator_actions to palimpsest_service;

create table pins (
    id uuid not null,
    tenant_id uuid not null,
    conversation_id uuid not null,
    seq integer not null,
    text text not null,
    request_id uuid,
    created_at timestamp with time zone not null default now(),
    removed_at timestamp with time zone,
    source text not null default 'pinned'::text,
    constraint pk_pins PRIMARY KEY (id),
    constraint ck_pins_source CHECK ((source = ANY (ARRAY['pinned'::text, 'detected'::text, 'withdrawal'::text]))),
    constraint fk_pins_conversation_id_conversations FOREIGN KEY (conversation_id) REFERENCES conversations(id)
);
alter table pins alter column text set statistics 0, alter column source set statistics 0;
CREATE INDEX ix_pins_conversation_id ON public.pins USING btree (conversation_id);
alter table pins enable row level security;
alter table pins force row level security;
create policy background_erases on pins for all to palimpsest_background using (true) with check (true);
create policy tenant on pins for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
CREATE TRIGGER pins_listed_when_changed AFTER UPDATE ON public.pins REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION list_changed_rules();
CREATE TRIGGER pins_listed_when_new AFTER INSERT ON public.pins REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION list_changed_rules();
CREATE TRIGGER pins_not_erased AFTER INSERT ON public.pins FOR EACH ROW EXECUTE FUNCTION guard_erased();
grant delete, select (conversation_id) on pins to palimpsest_background;
grant insert, select, update (removed_at) on pins to palimpsest_service;

create table processes (
    id uuid not null,
    kind text not null,
    host text not null,
    pid integer not null,
    queues text[] not null,
    version text not null,
    slots integer not null,
    busy integer not null default 0,
    oldest_task_at timestamp with time zone,
    started_at timestamp with time zone not null default now(),
    seen_at timestamp with time zone not null default now(),
    summarizer text,
    model text,
    place text,
    pid_started bigint,
    beat_seconds double precision,
    constraint pk_processes PRIMARY KEY (id),
    constraint ck_processes_kind CHECK ((kind = ANY (ARRAY['worker'::text, 'sweeper'::text])))
) with (fillfactor=50);
grant select (id, seen_at, beat_seconds) on processes to palimpsest_background;
grant delete, insert, select, update (busy, oldest_task_at, seen_at) on processes to palimpsest_service;

create table recall_requests (
    id uuid not null,
    tenant_id uuid not null,
    conversation_id uuid not null,
    key_id uuid not null,
    request_id uuid not null,
    origin text not null,
    of_user boolean not null,
    kind text not null,
    asked text not null,
    refs text[] not null,
    seqs integer[] not null,
    left_by text[] not null,
    left_in uuid[] not null,
    searched integer not null,
    tokens integer not null,
    created_at timestamp with time zone not null default now(),
    constraint pk_recall_requests PRIMARY KEY (id),
    constraint ck_recall_requests_kind CHECK ((kind = ANY (ARRAY['query'::text, 'ref'::text, 'pattern'::text]))),
    constraint ck_recall_requests_origin CHECK ((origin = ANY (ARRAY['api'::text, 'console'::text]))),
    constraint ck_recall_requests_parallel CHECK (((cardinality(seqs) = cardinality(left_by)) AND (cardinality(seqs) = cardinality(left_in)))),
    constraint fk_recall_requests_conversation_id_conversations FOREIGN KEY (conversation_id) REFERENCES conversations(id)
);
alter table recall_requests alter column asked set statistics 0, alter column refs set statistics 0, alter column left_by set statistics 0;
CREATE INDEX ix_recall_requests_conversation_id_id ON public.recall_requests USING btree (conversation_id, id);
CREATE INDEX ix_recall_requests_of_user ON public.recall_requests USING btree (request_id) WHERE of_user;
CREATE INDEX ix_recall_requests_tenant_id_id ON public.recall_requests USING btree (tenant_id, id);
alter table recall_requests enable row level security;
alter table recall_requests force row level security;
create policy auditor on recall_requests for select to palimpsest_auditor using (true);
create policy background_erases on recall_requests for all to palimpsest_background using (true) with check (true);
create policy tenant on recall_requests for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
CREATE TRIGGER recall_requests_not_erased AFTER INSERT ON public.recall_requests FOR EACH ROW EXECUTE FUNCTION guard_erased();
grant select (id, tenant_id, conversation_id, key_id, request_id, origin, of_user, kind, refs, seqs, left_by, left_in, searched, tokens, created_at) on recall_requests to palimpsest_auditor;
grant delete, select (id, conversation_id, request_id, of_user), update (created_at) on recall_requests to palimpsest_background;
grant insert, select on recall_requests to palimpsest_service;

create table recall_segments (
    tenant_id uuid not null,
    conversation_id uuid not null,
    first_seq integer not null,
    last_seq integer not null,
    terms bytea not null,
    constraint pk_recall_segments PRIMARY KEY (conversation_id, first_seq),
    constraint ck_recall_segments_span CHECK ((last_seq >= first_seq)),
    constraint fk_recall_segments_conversation_id_conversations FOREIGN KEY (conversation_id) REFERENCES conversations(id)
);
alter table recall_segments alter column terms set statistics 0;
alter table recall_segments enable row level security;
alter table recall_segments force row level security;
create policy background_erases on recall_segments for all to palimpsest_background using (true) with check (true);
create policy tenant on recall_segments for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
CREATE TRIGGER recall_segments_not_erased AFTER INSERT ON public.recall_segments FOR EACH ROW EXECUTE FUNCTION guard_erased();
grant delete, select (conversation_id) on recall_segments to palimpsest_background;
grant insert, select on recall_segments to palimpsest_service;

create table run_steps (
    tenant_id uuid not null,
    run_id uuid not null,
    step_no integer not null,
    name text not null,
    state text not null,
    reason text,
    detail text,
    error text,
    attempt integer not null,
    snapshot_version integer,
    tokens_before integer not null,
    tokens_after integer not null,
    messages_before integer not null,
    messages_after integer not null,
    results_cut integer,
    summarizer text,
    model text,
    prompt_version text,
    model_calls integer not null default 0,
    model_input_tokens integer,
    model_output_tokens integer,
    cost_usd numeric(14,6),
    duration_ms integer not null,
    created_at timestamp with time zone not null default now(),
    shared_tokens integer,
    constraint pk_run_steps PRIMARY KEY (run_id, step_no),
    constraint ck_run_steps_state CHECK ((state = ANY (ARRAY['committed'::text, 'skipped'::text, 'failed'::text]))),
    constraint fk_run_steps_run_id_runs FOREIGN KEY (run_id) REFERENCES runs(id)
);
alter table run_steps alter column detail set statistics 0, alter column error set statistics 0;
alter table run_steps enable row level security;
alter table run_steps force row level security;
create policy auditor on run_steps for select to palimpsest_auditor using (true);
create policy background_erases on run_steps for update to palimpsest_background using (true) with check (true);
create policy background_reads on run_steps for select to palimpsest_background using (true);
create policy background_removes on run_steps for delete to palimpsest_background using (true);
create policy tenant on run_steps for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
CREATE TRIGGER run_steps_count_usage AFTER INSERT ON public.run_steps FOR EACH ROW WHEN (((new.model_calls > 0) OR (new.model_input_tokens > 0) OR (new.model_output_tokens > 0) OR (new.cost_usd > (0)::numeric))) EXECUTE FUNCTION count_model_usage();
CREATE TRIGGER run_steps_not_erased BEFORE INSERT ON public.run_steps FOR EACH ROW EXECUTE FUNCTION guard_erased_steps();
grant select (tenant_id, run_id, step_no, name, state, reason, attempt, snapshot_version, tokens_before, tokens_after, messages_before, messages_after, results_cut, summarizer, model, prompt_version, model_calls, model_input_tokens, model_output_tokens, cost_usd, duration_ms, created_at) on run_steps to palimpsest_auditor;
grant delete, select (run_id), update (detail, error) on run_steps to palimpsest_background;
grant insert, select on run_steps to palimpsest_service;

create table runs (
    id uuid not null,
    tenant_id uuid not null,
    conversation_id uuid not null,
    trigger text not null,
    state text not null,
    queue text not null,
    reason text,
    error text,
    policy jsonb not null,
    request_id uuid,
    attempts integer not null default 0,
    lease_token uuid,
    lease_expires_at timestamp with time zone,
    worker text,
    parent_version integer,
    snapshot_version integer,
    tokens_before integer,
    tokens_after integer,
    messages_before integer,
    messages_after integer,
    created_at timestamp with time zone not null default now(),
    queued_at timestamp with time zone not null default now(),
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    strategy text,
    instructions text,
    base_version integer,
    target_tokens integer,
    block_id uuid,
    reserved_tokens bigint not null default 0,
    reserved_cost_usd numeric(14,6) not null default 0,
    not_before timestamp with time zone,
    kind text,
    process_id uuid,
    constraint pk_runs PRIMARY KEY (id),
    constraint ck_runs_kind CHECK ((kind = ANY (ARRAY['ladder'::text, 'manual'::text, 'recovery'::text, 'context_block'::text, 'batch'::text, 'request'::text]))),
    constraint ck_runs_queue CHECK ((queue = ANY (ARRAY['checks'::text, 'summaries'::text]))),
    constraint ck_runs_state CHECK ((state = ANY (ARRAY['queued'::text, 'running'::text, 'committed'::text, 'skipped'::text, 'failed'::text, 'dead'::text]))),
    constraint ck_runs_trigger CHECK ((trigger = ANY (ARRAY['check'::text, 'pause'::text, 'manual'::text, 'overflow'::text, 'budget'::text, 'context_block'::text, 'batch'::text, 'pin'::text, 'restore'::text, 'fork'::text, 'import'::text]))),
    constraint fk_runs_block_id_context_blocks FOREIGN KEY (block_id) REFERENCES context_blocks(id),
    constraint fk_runs_conversation_id_conversations FOREIGN KEY (conversation_id) REFERENCES conversations(id)
);
alter table runs alter column error set statistics 0, alter column policy set statistics 0, alter column instructions set statistics 0;
CREATE INDEX ix_runs_active ON public.runs USING btree (state, queued_at) WHERE (state = ANY (ARRAY['queued'::text, 'running'::text]));
CREATE INDEX ix_runs_block_id ON public.runs USING btree (block_id) WHERE (block_id IS NOT NULL);
CREATE INDEX ix_runs_conversation_id_id ON public.runs USING btree (conversation_id, id);
CREATE INDEX ix_runs_dead ON public.runs USING btree (tenant_id, id) WHERE (state = 'dead'::text);
CREATE INDEX ix_runs_failed ON public.runs USING btree (tenant_id, id) WHERE (state = 'failed'::text);
CREATE INDEX ix_runs_tenant_id_id ON public.runs USING btree (tenant_id, id);
CREATE UNIQUE INDEX uq_runs_active ON public.runs USING btree (conversation_id) WHERE ((state = ANY (ARRAY['queued'::text, 'running'::text])) AND (block_id IS NULL));
CREATE UNIQUE INDEX uq_runs_active_block ON public.runs USING btree (block_id) WHERE (state = ANY (ARRAY['queued'::text, 'running'::text]));
alter table runs enable row level security;
alter table runs force row level security;
create policy auditor on runs for select to palimpsest_auditor using (true);
create policy background on runs for select to palimpsest_background using (true);
create policy background_offers on runs for update to palimpsest_background using (true) with check (true);
create policy background_removes on runs for delete to palimpsest_background using (true);
create policy tenant on runs for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
CREATE TRIGGER runs_forget_holder BEFORE UPDATE OF lease_token ON public.runs FOR EACH ROW WHEN (((old.process_id IS NOT NULL) AND (NOT (new.process_id IS DISTINCT FROM old.process_id)) AND (new.lease_token IS DISTINCT FROM old.lease_token))) EXECUTE FUNCTION forget_holder();
CREATE TRIGGER runs_kind BEFORE INSERT OR UPDATE ON public.runs FOR EACH ROW WHEN ((new.kind IS NULL)) EXECUTE FUNCTION write_run_kind();
CREATE TRIGGER runs_not_erased BEFORE INSERT ON public.runs FOR EACH ROW EXECUTE FUNCTION guard_erased_runs();
grant select (id, tenant_id, conversation_id, trigger, state, reason, request_id, attempts, worker, tokens_before, tokens_after, messages_before, messages_after, created_at, started_at, finished_at) on runs to palimpsest_auditor;
grant delete, select (id, tenant_id, conversation_id, trigger, state, queue, reason, policy, attempts, lease_expires_at, worker, created_at, queued_at, finished_at, block_id, reserved_tokens, reserved_cost_usd, process_id), update (state, reason, error, policy, lease_token, lease_expires_at, queued_at, finished_at, instructions, block_id, reserved_tokens, reserved_cost_usd) on runs to palimpsest_background;
grant insert, select, update on runs to palimpsest_service;

create table snapshot_parts (
    tenant_id uuid not null,
    conversation_id uuid not null,
    version integer not null,
    parent_version integer not null,
    run_id uuid,
    step text not null,
    covers_through integer not null,
    messages json,
    seqs integer[] not null,
    coverage jsonb not null,
    summary text,
    summarizer text,
    tokens integer not null,
    message_count integer not null,
    bytes integer not null,
    exchanges integer not null,
    prefix_hash bytea not null,
    created_at timestamp with time zone not null default now(),
    pins jsonb not null default '[]'::jsonb,
    part text,
    follows integer[] not null default '{}'::integer[],
    claims jsonb,
    media bigint[],
    constraint pk_snapshots PRIMARY KEY (conversation_id, version),
    constraint fk_snapshots_conversation_id_conversations FOREIGN KEY (conversation_id) REFERENCES conversations(id),
    constraint fk_snapshots_run_id_runs FOREIGN KEY (run_id) REFERENCES runs(id)
);
alter table snapshot_parts alter column coverage set statistics 0, alter column summary set statistics 0, alter column prefix_hash set statistics 0, alter column pins set statistics 0, alter column part set statistics 0, alter column claims set statistics 0;
CREATE INDEX ix_snapshots_run_id ON public.snapshot_parts USING btree (run_id);
alter table snapshot_parts enable row level security;
alter table snapshot_parts force row level security;
create policy auditor on snapshot_parts for select to palimpsest_auditor using (true);
create policy background_reads on snapshot_parts for select to palimpsest_background using (true);
create policy background_removes on snapshot_parts for delete to palimpsest_background using (true);
create policy tenant on snapshot_parts for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
CREATE TRIGGER snapshots_immutable BEFORE DELETE OR UPDATE ON public.snapshot_parts FOR EACH ROW EXECUTE FUNCTION guard_snapshots();
CREATE TRIGGER snapshots_no_truncate BEFORE TRUNCATE ON public.snapshot_parts FOR EACH STATEMENT EXECUTE FUNCTION guard_snapshots();
CREATE TRIGGER snapshots_not_erased AFTER INSERT ON public.snapshot_parts FOR EACH ROW EXECUTE FUNCTION guard_erased();
grant select (tenant_id, conversation_id, version, parent_version, run_id, step, coverage, created_at, claims) on snapshot_parts to palimpsest_auditor;
grant delete, select (conversation_id, version, parent_version, run_id, covers_through, created_at, media) on snapshot_parts to palimpsest_background;
grant insert, select on snapshot_parts to palimpsest_service;

create table tenants (
    id uuid not null,
    name text not null,
    policy jsonb not null default '{}'::jsonb,
    created_at timestamp with time zone not null default now(),
    rate_limit_key text,
    rate_limit_tenant text,
    daily_model_tokens bigint,
    daily_model_cost_usd numeric(14,6),
    limits_changed_at timestamp with time zone,
    constraint pk_tenants PRIMARY KEY (id),
    constraint uq_tenants_name UNIQUE (name)
);
alter table tenants alter column policy set statistics 0;
alter table tenants enable row level security;
alter table tenants force row level security;
create policy auditor on tenants for select to palimpsest_auditor using (true);
create policy background on tenants for select to palimpsest_background using (true);
create policy tenant on tenants for all to public using ((id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
grant select (id, name) on tenants to palimpsest_auditor;
grant select (id, name, policy, rate_limit_key, rate_limit_tenant, limits_changed_at) on tenants to palimpsest_background;
grant insert, select, update (name, policy) on tenants to palimpsest_service;

create table turn_usages (
    tenant_id uuid not null,
    conversation_id uuid not null,
    seq integer not null,
    snapshot_version integer not null,
    input_tokens integer not null,
    cached_tokens integer,
    written_tokens integer,
    output_tokens integer not null,
    is_edit boolean not null,
    answered_at timestamp with time zone not null,
    reckoned_at timestamp with time zone,
    prefix_tokens integer,
    expected_tokens integer,
    saved_tokens integer,
    cost_usd numeric(14,6),
    saved_usd numeric(14,6),
    saved_uncached_usd numeric(14,6),
    constraint pk_turn_usages PRIMARY KEY (conversation_id, seq),
    constraint fk_turn_usages_conversation_id_conversations FOREIGN KEY (conversation_id) REFERENCES conversations(id)
);
CREATE INDEX ix_turn_usages_reckoned_at ON public.turn_usages USING btree (answered_at) WHERE (reckoned_at IS NULL);
CREATE INDEX ix_turn_usages_tenant_id_answered_at ON public.turn_usages USING btree (tenant_id, answered_at);
alter table turn_usages enable row level security;
alter table turn_usages force row level security;
create policy auditor on turn_usages for select to palimpsest_auditor using (true);
create policy background_erases on turn_usages for all to palimpsest_background using (true) with check (true);
create policy tenant on turn_usages for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
CREATE TRIGGER turn_usages_not_erased AFTER INSERT ON public.turn_usages FOR EACH ROW EXECUTE FUNCTION guard_erased();
grant select on turn_usages to palimpsest_auditor;
grant delete, select (tenant_id, conversation_id, seq, answered_at, reckoned_at), update (answered_at) on turn_usages to palimpsest_background;
grant insert, select, update (reckoned_at, prefix_tokens, expected_tokens, saved_tokens, cost_usd, saved_usd, saved_uncached_usd) on turn_usages to palimpsest_service;

create table waiting_snapshots (
    conversation_id uuid not null,
    tenant_id uuid not null,
    version integer,
    head_version integer not null,
    edits integer not null,
    pins uuid[] not null,
    lifetime integer not null,
    cold_at timestamp with time zone not null,
    constraint pk_waiting_snapshots PRIMARY KEY (conversation_id),
    constraint fk_waiting_snapshots_conversation_id_conversations FOREIGN KEY (conversation_id) REFERENCES conversations(id)
);
CREATE INDEX ix_waiting_snapshots_cold_at ON public.waiting_snapshots USING btree (cold_at);
alter table waiting_snapshots enable row level security;
alter table waiting_snapshots force row level security;
create policy background_erases on waiting_snapshots for all to palimpsest_background using (true) with check (true);
create policy tenant on waiting_snapshots for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
CREATE TRIGGER waiting_snapshots_not_erased AFTER INSERT ON public.waiting_snapshots FOR EACH ROW EXECUTE FUNCTION guard_erased();
grant delete, insert, select (conversation_id, tenant_id, version, lifetime, cold_at), update (lifetime, cold_at) on waiting_snapshots to palimpsest_background;
grant insert, select, update (version, head_version, edits, pins, lifetime, cold_at) on waiting_snapshots to palimpsest_service;

create table waiting_summaries (
    run_id uuid not null,
    tenant_id uuid not null,
    conversation_id uuid not null,
    block_id uuid,
    base_version integer,
    not_before timestamp with time zone not null,
    created_at timestamp with time zone not null default now(),
    done_at timestamp with time zone,
    constraint pk_waiting_summaries PRIMARY KEY (run_id),
    constraint fk_waiting_summaries_block_id_context_blocks FOREIGN KEY (block_id) REFERENCES context_blocks(id) ON DELETE CASCADE,
    constraint fk_waiting_summaries_conversation_id_conversations FOREIGN KEY (conversation_id) REFERENCES conversations(id) ON DELETE CASCADE,
    constraint fk_waiting_summaries_run_id_runs FOREIGN KEY (run_id) REFERENCES runs(id) ON DELETE CASCADE
);
CREATE INDEX ix_waiting_summaries_block_id ON public.waiting_summaries USING btree (block_id) WHERE (block_id IS NOT NULL);
CREATE INDEX ix_waiting_summaries_not_before ON public.waiting_summaries USING btree (not_before) WHERE (done_at IS NULL);
CREATE INDEX ix_waiting_summaries_tenant_id ON public.waiting_summaries USING btree (tenant_id) WHERE (done_at IS NULL);
CREATE UNIQUE INDEX uq_waiting_summaries_block_id ON public.waiting_summaries USING btree (block_id) WHERE (done_at IS NULL);
CREATE UNIQUE INDEX uq_waiting_summaries_conversation_id ON public.waiting_summaries USING btree (conversation_id) WHERE ((block_id IS NULL) AND (done_at IS NULL));
alter table waiting_summaries enable row level security;
alter table waiting_summaries force row level security;
create policy background on waiting_summaries for select to palimpsest_background using (true);
create policy tenant on waiting_summaries for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
grant select on waiting_summaries to palimpsest_background;
grant insert, select, update (not_before, done_at) on waiting_summaries to palimpsest_service;

create table webhook_deliveries (
    id uuid not null,
    tenant_id uuid not null,
    webhook_id uuid not null,
    run_id uuid not null,
    run_finished_at timestamp with time zone not null,
    event text not null,
    body text not null,
    state text not null default 'pending'::text,
    attempts integer not null default 0,
    status integer,
    error text,
    created_at timestamp with time zone not null default now(),
    next_attempt_at timestamp with time zone not null default now(),
    finished_at timestamp with time zone,
    constraint pk_webhook_deliveries PRIMARY KEY (id),
    constraint uq_webhook_deliveries_webhook_id_run_id_run_finished_at UNIQUE (webhook_id, run_id, run_finished_at),
    constraint ck_webhook_deliveries_state CHECK ((state = ANY (ARRAY['pending'::text, 'delivered'::text, 'dead'::text]))),
    constraint fk_webhook_deliveries_run_id_runs FOREIGN KEY (run_id) REFERENCES runs(id),
    constraint fk_webhook_deliveries_webhook_id_webhooks FOREIGN KEY (webhook_id) REFERENCES webhooks(id)
);
alter table webhook_deliveries alter column body set statistics 0, alter column error set statistics 0;
CREATE INDEX ix_webhook_deliveries_dead ON public.webhook_deliveries USING btree (tenant_id, id) WHERE (state = 'dead'::text);
CREATE INDEX ix_webhook_deliveries_due ON public.webhook_deliveries USING btree (next_attempt_at) WHERE (state = 'pending'::text);
CREATE INDEX ix_webhook_deliveries_run_id ON public.webhook_deliveries USING btree (run_id);
CREATE INDEX ix_webhook_deliveries_tenant_id_id ON public.webhook_deliveries USING btree (tenant_id, id);
alter table webhook_deliveries enable row level security;
alter table webhook_deliveries force row level security;
create policy background on webhook_deliveries for select to palimpsest_background using (true);
create policy background_locks on webhook_deliveries for update to palimpsest_background using (true) with check (true);
create policy background_removes on webhook_deliveries for delete to palimpsest_background using (true);
create policy tenant on webhook_deliveries for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
grant delete, select (id, tenant_id, run_id, state, next_attempt_at, finished_at), update (finished_at) on webhook_deliveries to palimpsest_background;
grant insert, select, update (state, attempts, status, error, next_attempt_at, finished_at) on webhook_deliveries to palimpsest_service;

create table webhooks (
    id uuid not null,
    tenant_id uuid not null,
    url text not null,
    secret text not null,
    events text[] not null,
    created_at timestamp with time zone not null default now(),
    removed_at timestamp with time zone,
    constraint pk_webhooks PRIMARY KEY (id),
    constraint fk_webhooks_tenant_id_tenants FOREIGN KEY (tenant_id) REFERENCES tenants(id)
);
alter table webhooks alter column url set statistics 0, alter column secret set statistics 0;
CREATE INDEX ix_webhooks_tenant_id ON public.webhooks USING btree (tenant_id);
alter table webhooks enable row level security;
alter table webhooks force row level security;
create policy tenant on webhooks for all to public using ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)) with check ((tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid));
grant insert, select, update (removed_at) on webhooks to palimpsest_service;

create view claims with (security_invoker=true) as
 SELECT t.name AS tenant,
    s.conversation_id,
    s.version,
    s.run_id,
    (claim.value ->> 0)::integer AS line,
    ARRAY( SELECT seq.value::integer AS value
           FROM jsonb_array_elements_text(claim.value -> 1) seq(value)) AS seqs,
    claim.value ->> 2 AS support,
    s.created_at
   FROM snapshot_parts s
     JOIN tenants t ON t.id = s.tenant_id
     CROSS JOIN LATERAL jsonb_array_elements(s.claims) claim(value);
grant select on claims to palimpsest_auditor;

create view compaction_history with (security_invoker=true) as
 SELECT t.name AS tenant,
    r.conversation_id,
    r.id AS run_id,
    r.trigger,
    r.state AS run_state,
    r.reason AS run_reason,
    r.attempts,
    r.worker,
    r.request_id,
    r.created_at AS asked_at,
    r.started_at,
    r.finished_at,
    s.step_no,
    s.name AS step,
    s.state AS step_state,
    s.reason AS step_reason,
    s.attempt,
    s.snapshot_version,
    COALESCE(s.snapshot_version = c.head_version, false) AS is_head,
    COALESCE(s.messages_before, r.messages_before) AS messages_before,
    COALESCE(s.messages_after, r.messages_after) AS messages_after,
    COALESCE(s.tokens_before, r.tokens_before) AS tokens_before,
    COALESCE(s.tokens_after, r.tokens_after) AS tokens_after,
        CASE
            WHEN s.state = 'committed'::text THEN GREATEST(0, s.tokens_before - s.tokens_after)
            ELSE 0
        END AS tokens_saved,
    s.results_cut,
    s.summarizer,
    s.model,
    s.prompt_version,
    COALESCE(s.model_calls, 0) AS model_calls,
    COALESCE(s.model_input_tokens, 0) AS model_input_tokens,
    COALESCE(s.model_output_tokens, 0) AS model_output_tokens,
    s.cost_usd,
    s.duration_ms,
    s.created_at AS done_at
   FROM runs r
     JOIN tenants t ON t.id = r.tenant_id
     JOIN conversations c ON c.id = r.conversation_id
     LEFT JOIN run_steps s ON s.run_id = r.id;
grant select on compaction_history to palimpsest_auditor;

create view compaction_savings with (security_invoker=true) as
 SELECT t.name AS tenant,
    u.conversation_id,
    (u.answered_at AT TIME ZONE 'utc'::text)::date AS day,
    count(*) AS calls,
    sum(u.input_tokens) AS input_tokens,
    sum(u.cached_tokens) AS cached_tokens,
    sum(u.expected_tokens) FILTER (WHERE u.cached_tokens IS NOT NULL) AS expected_tokens,
    sum(u.saved_tokens) AS saved_tokens,
    sum(u.cost_usd) AS cost_usd,
    sum(u.saved_usd) AS saved_usd,
    sum(u.saved_uncached_usd) AS saved_uncached_usd,
    count(u.cached_tokens) AS calls_with_cache_counts
   FROM turn_usages u
     JOIN tenants t ON t.id = u.tenant_id
  GROUP BY t.name, u.conversation_id, ((u.answered_at AT TIME ZONE 'utc'::text)::date);
grant select on compaction_savings to palimpsest_auditor;

create view conversation_costs with (security_invoker=true) as
 SELECT t.name AS tenant,
    c.id AS conversation_id,
    c.external_id,
    c.user_ref,
    c.created_at,
    c.erased_at,
    c.turn_count AS turns,
    stored.messages AS messages_stored,
    stored.superseded AS messages_superseded,
    stored.tokens AS tokens_stored,
    c.context_tokens AS tokens_served,
    stored.tokens - c.context_tokens AS tokens_saved_per_call,
    c.head_version,
    ran.runs,
    ran.failed AS runs_failed,
    spent.model_calls,
    spent.model_input_tokens,
    spent.model_output_tokens,
    spent.cost_usd,
    ran.last_run_at
   FROM conversations c
     JOIN tenants t ON t.id = c.tenant_id
     CROSS JOIN LATERAL ( SELECT count(*) AS messages,
            count(m.superseded_at) AS superseded,
            COALESCE(sum(m.tokens) FILTER (WHERE m.superseded_at IS NULL), 0::bigint) AS tokens
           FROM messages m
          WHERE m.conversation_id = c.id) stored
     CROSS JOIN LATERAL ( SELECT count(*) AS runs,
            count(*) FILTER (WHERE r.state = ANY (ARRAY['failed'::text, 'dead'::text])) AS failed,
            max(r.created_at) AS last_run_at
           FROM runs r
          WHERE r.conversation_id = c.id) ran
     CROSS JOIN LATERAL ( SELECT COALESCE(sum(s.model_calls), 0::bigint) AS model_calls,
            COALESCE(sum(s.model_input_tokens), 0::bigint) AS model_input_tokens,
            COALESCE(sum(s.model_output_tokens), 0::bigint) AS model_output_tokens,
            COALESCE(sum(s.cost_usd), 0::numeric) AS cost_usd
           FROM runs r
             JOIN run_steps s ON s.run_id = r.id
          WHERE r.conversation_id = c.id) spent;
grant select on conversation_costs to palimpsest_auditor;

create view message_lineage with (security_invoker=true) as
 SELECT t.name AS tenant,
    c.id AS conversation_id,
    told.seq,
    told.role,
    told.tokens,
    told.superseded_at,
    told.version,
    told.fate,
    told.run_id,
    told.step,
    told.at
   FROM conversations c
     JOIN tenants t ON t.id = c.tenant_id
     CROSS JOIN LATERAL ( WITH RECURSIVE chain AS (
                 SELECT s.version,
                    s.parent_version,
                    s.run_id,
                    s.coverage,
                    s.step,
                    s.created_at
                   FROM snapshot_parts s
                  WHERE s.conversation_id = c.id AND s.version = c.head_version
                UNION ALL
                 SELECT s.version,
                    s.parent_version,
                    s.run_id,
                    s.coverage,
                    s.step,
                    s.created_at
                   FROM snapshot_parts s
                     JOIN chain ON s.version = chain.parent_version
                  WHERE s.conversation_id = c.id
                ), covering AS (
                 SELECT ends.version,
                    ends.parent_version,
                    ends.run_id,
                    ends.coverage,
                    ends.step,
                    ends.created_at,
                    ends.through,
                    max(ends.through) OVER (ORDER BY ends.version ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
                   FROM ( SELECT chain.version,
                            chain.parent_version,
                            chain.run_id,
                            chain.coverage,
                            chain.step,
                            chain.created_at,
                            COALESCE(( SELECT max((span.value ->> 1)::integer) AS max
                                   FROM jsonb_array_elements(chain.coverage) span(value)), '-1'::integer) AS through
                           FROM chain) ends
                ), fates AS (
                 SELECT m_1.seq,
                    0 AS version,
                    'kept'::text AS fate,
                    NULL::uuid AS run_id,
                    NULL::text AS step,
                    m_1.created_at AS at
                   FROM messages m_1
                  WHERE m_1.conversation_id = c.id
                UNION ALL
                 SELECT covered.seq,
                    chain.version,
                    span.value ->> 2,
                    (span.value ->> 3)::uuid AS uuid,
                    chain.step,
                    chain.created_at
                   FROM chain
                     CROSS JOIN LATERAL jsonb_array_elements(chain.coverage) span(value)
                     CROSS JOIN LATERAL generate_series((span.value ->> 0)::integer, (span.value ->> 1)::integer) covered(seq)
                UNION ALL
                 SELECT shown.seq,
                    back.version,
                    'kept'::text,
                    back.run_id,
                    back.step,
                    back.created_at
                   FROM covering back
                     CROSS JOIN LATERAL generate_series(back.through + 1, back.before) shown(seq)
                ), changed AS (
                 SELECT f.seq,
                    f.version,
                    f.fate,
                    f.run_id,
                    f.step,
                    f.at,
                    lag(f.fate) OVER (PARTITION BY f.seq ORDER BY f.version) IS DISTINCT FROM f.fate AS is_new
                   FROM fates f
                )
         SELECT m.seq,
            m.role,
            m.tokens,
            m.superseded_at,
            d.version,
            d.fate,
            d.run_id,
            d.step,
            d.at
           FROM changed d
             JOIN messages m ON m.conversation_id = c.id AND m.seq = d.seq
          WHERE d.is_new) told;
grant select on message_lineage to palimpsest_auditor;

create view prompt_cache_turns with (security_invoker=true) as
 SELECT t.name AS tenant,
    u.conversation_id,
    u.seq,
    u.snapshot_version,
    u.answered_at,
    u.input_tokens,
    u.output_tokens,
    u.cached_tokens,
    u.written_tokens,
    u.prefix_tokens,
    u.expected_tokens,
    GREATEST(0, u.expected_tokens - u.cached_tokens) AS missing_tokens,
    u.saved_tokens,
    u.cost_usd,
    u.saved_usd,
    u.saved_uncached_usd
   FROM turn_usages u
     JOIN tenants t ON t.id = u.tenant_id;
grant select on prompt_cache_turns to palimpsest_auditor;

create view recalls with (security_invoker=true) as
 SELECT t.name AS tenant,
    r.conversation_id,
    r.id AS recall_id,
    r.request_id,
    r.key_id,
    r.origin,
    r.of_user,
    r.kind,
    r.refs,
    r.seqs,
    r.left_by,
    r.left_in,
    cardinality(r.seqs) AS messages,
    ( SELECT count(*) AS count
           FROM unnest(r.left_by) step(name)
          WHERE step.name IS NOT NULL) AS messages_out_of_context,
    r.searched,
    r.tokens,
    r.created_at AS asked_at
   FROM recall_requests r
     JOIN tenants t ON t.id = r.tenant_id;
grant select on recalls to palimpsest_auditor;

create view sent_messages with (security_invoker=true) as
 SELECT m.tenant_id,
    m.conversation_id,
    m.seq,
    m.shape,
    as_sent(m.role, m.content, m.sent)::json AS sent
   FROM messages m
  WHERE m.shape IS NOT NULL;
CREATE TRIGGER sent_messages_are_messages INSTEAD OF INSERT ON public.sent_messages FOR EACH ROW EXECUTE FUNCTION write_sent_message();
grant insert, select on sent_messages to palimpsest_service;

create view snapshots with (security_invoker=true) as
 SELECT p.tenant_id,
    p.conversation_id,
    p.version,
    p.parent_version,
    p.run_id,
    p.step,
    p.covers_through,
    COALESCE(p.messages, ((COALESCE(( SELECT string_agg(earlier.part, ''::text) AS string_agg
           FROM ( SELECT e.part
                   FROM snapshot_parts e
                  WHERE e.conversation_id = p.conversation_id AND e.version >= p.follows[1] AND e.version <= p.version AND (e.version = ANY (p.follows))
                  ORDER BY e.version) earlier), ''::text) || p.part) || ']'::text)::json) AS messages,
    p.seqs,
    p.coverage,
    p.summary,
    p.summarizer,
    p.tokens,
    p.message_count,
    p.bytes,
    p.exchanges,
    p.prefix_hash,
    p.created_at,
    p.pins,
    p.claims,
    p.media
   FROM snapshot_parts p;
alter view snapshots alter column created_at set default now();
alter view snapshots alter column pins set default '[]'::jsonb;
CREATE TRIGGER snapshots_immutable INSTEAD OF DELETE OR UPDATE ON public.snapshots FOR EACH ROW EXECUTE FUNCTION guard_snapshots();
CREATE TRIGGER snapshots_stored INSTEAD OF INSERT ON public.snapshots FOR EACH ROW EXECUTE FUNCTION store_snapshot();
grant insert, select on snapshots to palimpsest_service;

create function add_context_blocks(p_tenant uuid, p_conversation uuid, p_request uuid, p_seq integer, p_blocks json, p_carried_max integer, p_policy jsonb) returns void
language plpgsql as $$
begin
    insert into public.context_blocks (id, tenant_id, conversation_id, seq, position, source, title, text, digest,
                                       outline, summary, summarized_at, tokens, outline_tokens)
    select b.id, p_tenant, p_conversation, p_seq, b.place::integer - 1, b.source,
           b.title, b.text, sha256(convert_to(b.text, 'UTF8')), b.outline, known.summary, known.summarized_at,
           b.tokens, b.outline_tokens
    from rows from (json_to_recordset(p_blocks) as (id uuid, source text, title text, text text, outline text,
                                                    tokens integer, outline_tokens integer))
        with ordinality as b (id, source, title, text, outline, tokens, outline_tokens, place)
        left join lateral (select o.summary, o.summarized_at from public.context_blocks as o
                           where o.conversation_id = p_conversation and o.summary is not null
                             and o.digest = sha256(convert_to(b.text, 'UTF8')) limit 1) as known on true;
    with live as (
        select b.id, b.outline_tokens, b.seq, b.position,
               row_number() over (partition by b.source order by b.seq desc, b.position desc) as nth
        from public.context_blocks as b
        where b.conversation_id = p_conversation and b.carried_until is null and b.superseded_at is null
    ), summed as (
        select id, nth, sum(case when nth = 1 then outline_tokens else 0 end) over (order by seq desc, position desc)
            as tokens
        from live
    )
    update public.context_blocks as b set carried_until = p_seq
    from summed where b.id = summed.id and (summed.nth > 1 or summed.tokens > p_carried_max);
    perform public.recount_carried(p_conversation);
    insert into public.runs (id, tenant_id, conversation_id, trigger, state, queue, policy, request_id, block_id)
    select distinct on (b.digest)
           r.run_id, p_tenant, p_conversation, 'context_block', 'queued', 'summaries', p_policy, p_request, b.id
    from json_to_recordset(p_blocks) as r (id uuid, run_id uuid)
        join public.context_blocks as b on b.id = r.id
    where r.run_id is not null and b.summary is null
      and not exists (select from public.context_blocks as o join public.runs as a on a.block_id = o.id
                      where o.conversation_id = p_conversation and o.digest = b.digest
                        and a.state in ('queued', 'running'));
end $$;

create function append_sent_turn(p_shape text, p_sent json[], p_tenant uuid, p_conversation uuid, p_request uuid, p_expected_seq integer, p_replace_from integer, p_key text, p_body_hash bytea, p_messages turn_messages, p_facts turn_facts, p_usage turn_usage, p_context turn_context, p_limits context_limits, OUT outcome text, OUT first_seq integer, OUT last_seq integer, OUT context_tokens integer, OUT queued boolean)
language sql as $$
    select * from public.append_turn(p_tenant, p_conversation, p_request, p_expected_seq, p_replace_from, p_key, p_body_hash,
                                     p_messages, p_facts, p_usage, p_context, p_limits, p_shape, p_sent)
$$;

create function append_turn(p_tenant uuid, p_conversation uuid, p_request uuid, p_expected_seq integer, p_replace_from integer, p_key text, p_body_hash bytea, p_messages turn_messages, p_facts turn_facts, p_usage turn_usage, p_context turn_context, p_limits context_limits, OUT outcome text, OUT first_seq integer, OUT last_seq integer, OUT context_tokens integer, OUT queued boolean)
language sql as $$
    select * from public.append_turn(p_tenant, p_conversation, p_request, p_expected_seq, p_replace_from, p_key, p_body_hash,
                                     p_messages, p_facts, p_usage, p_context, p_limits, null, null)
$$;

create function append_turn(p_tenant uuid, p_conversation uuid, p_request uuid, p_expected_seq integer, p_replace_from integer, p_key text, p_body_hash bytea, p_messages turn_messages, p_facts turn_facts, p_usage turn_usage, p_context turn_context, p_limits context_limits, p_shape text, p_sent json[], OUT outcome text, OUT first_seq integer, OUT last_seq integer, OUT context_tokens integer, OUT queued boolean)
language plpgsql as $$
declare
    v_count constant integer := cardinality(p_messages.roles);
    v_has_thinking constant boolean := true = any (p_messages.thinking);
    v_asks constant boolean := true = any (p_messages.requests[:p_facts.after_answer - 1]);
    v_total integer := p_facts.total_tokens;
    v_newer integer := p_facts.newer_tokens;
    v_cap integer;
    v_unlike_view boolean := false;
    v_samples real[];
    v_ratio real;
    v_unstored integer;
    v_last_count integer[];
    v_excess integer := 0;
    v_media bigint;
    v_times constant timestamptz[] := nullif(current_setting('app.message_times', true), '');
    v_stored record;
    v record;
begin
    perform set_config('app.tenant_id', p_tenant::text, true);
    if p_key is not null then
        select k.* into v_stored from public.idempotency_keys as k
            where k.conversation_id = p_conversation and k.key = p_key;
        if found then
            outcome := case when v_stored.body_hash = p_body_hash then 'replayed' else 'other_body' end;
            first_seq := v_stored.first_seq;
            last_seq := v_stored.last_seq;
            context_tokens := v_stored.context_tokens;
            queued := v_stored.queued;
            return;
        end if;
    end if;
    if p_replace_from is not null then
        -- Rare: an edit or a regenerated answer. What follows then appends to the shorter conversation.
        select c.next_seq as next_seq into v from public.conversations as c
            where c.id = p_conversation and c.tenant_id = p_tenant for no key update;
        if found and (p_expected_seq is null or v.next_seq = p_expected_seq) then
            if p_replace_from > v.next_seq then
                outcome := 'beyond_end';
                first_seq := v.next_seq;
                return;
            end if;
            perform public.supersede(p_conversation, p_replace_from);
        end if;
    end if;
    if p_facts.longest_result > 0 then
        -- Rare: only a turn with tool results has to know the cap before it can count.
        select coalesce(c.result_cap, p_limits.result_cap) into v_cap
            from public.conversations as c where c.id = p_conversation;
        if p_facts.longest_result > v_cap then
            v_total := v_total - public.tokens_over_cap(p_messages.result_chars, v_cap);
            v_newer := v_newer - public.tokens_over_cap(p_messages.result_chars[p_facts.after_answer + 1:], v_cap);
        end if;
    end if;
    if v_has_thinking then
        -- What was thought was signed for what the model saw. The view shows less than that of a long result in the same
        -- turn; and what had to be fitted into the budget need not be the next time.
        select exists (select from unnest(p_messages.result_chars, p_messages.hidden)
                           with ordinality as message (chars, hidden, place)
                       where (message.hidden > 0 or v_cap < any (message.chars::integer[]))
                         and true = any (p_messages.thinking[message.place + 1:]))
            or c.context_tokens * f.factor > coalesce((c.policy ->> 'total_token_budget')::integer, p_limits.total_token_budget)
                - coalesce((c.policy ->> 'reserved_output_tokens')::integer, p_limits.reserved_output_tokens)
                - ceil(c.fixed_tokens * f.factor) - c.unstored_tokens
        into v_unlike_view
        from public.conversations as c,
             lateral (select greatest(c.token_ratio, case when c.measured_version = c.head_version then
                          (c.measured_tokens - c.unstored_tokens)::double precision
                          / greatest(1, c.context_tokens + c.fixed_tokens + c.turn_context_tokens) end) as factor) as f
        where c.id = p_conversation;
    end if;

    if p_usage.input_tokens is not null and p_context.blocks is null then
        -- Nothing is learned where the call may have seen context blocks in a form that nobody told of. The row is not locked
        -- for this: of two counts that come at once one may be forgotten.
        select l.samples, l.ratio, l.unstored, l.last_count,
               case when p_usage.input_tokens > l.unstored + 2 * (c.context_tokens::bigint + c.fixed_tokens + p_facts.seen_tokens) + 12000
                    then least(1000000, p_usage.input_tokens - l.unstored
                                        - ceil(l.ratio * (c.context_tokens::bigint + c.fixed_tokens + p_facts.seen_tokens)))::integer else 0 end
        into v_samples, v_ratio, v_unstored, v_last_count, v_excess
        from public.conversations as c,
             lateral public.learn_count(p_usage.input_tokens, c.context_tokens + c.fixed_tokens + p_facts.seen_tokens,
                                        c.ratio_samples, c.token_ratio, c.unstored_tokens, c.last_count) as l
        where c.id = p_conversation and (v_asks or c.turn_context_tokens = 0)
          and coalesce(p_usage.version = c.head_version, c.head_moved_at <> c.next_seq);
    end if;

    if v_excess > 0 then
        -- Rare: the messages cannot explain the count: it is not believed. Media may be larger than anybody
        -- can read of them: what they have too much is theirs, and teaches nothing about the rest.
        select max(m.place) into v_media
        from unnest(p_messages.contents[:p_facts.after_answer]) with ordinality as m (content, place)
        where m.content::text ~ '"(type|of)"\s*:\s*"(image|document|container_upload|audio|input_audio|file)"';
        if v_media is not null then
            v_total := v_total + v_excess;
        elsif not exists (
            select from public.conversations as c join public.messages as m on m.conversation_id = c.id
            where c.id = p_conversation and m.seq >= coalesce(c.measured_seq, 0) and m.superseded_at is null
              and m.content::text ~ '"(type|of)"\s*:\s*"(image|document|container_upload|audio|input_audio|file)"') then
            p_usage.input_tokens := null;
        end if;
        if p_usage.input_tokens is not null then
            v_samples := null;
            v_ratio := null;
            v_unstored := null;
            v_last_count := null;
        end if;
    end if;

    update public.conversations as c
    set next_seq = c.next_seq + v_count,
        turn_count = c.turn_count + 1,
        revision = public.next_revision(c.revision),
        context_tokens = c.context_tokens + v_total,
        context_messages = c.context_messages + v_count,
        context_bytes = c.context_bytes + p_facts.total_bytes,
        context_exchanges = c.context_exchanges + p_facts.exchanges,
        last_request = case when p_facts.last_request >= 0 then c.next_seq + p_facts.last_request else c.last_request end,
        newest_result = case when p_facts.newest_result >= 0 then c.next_seq + p_facts.newest_result else c.newest_result end,
        overflows = 0,
        turn_context_tokens = case when p_facts.has_request then 0 else c.turn_context_tokens end,
        -- A count belongs to the version it was made with. Without a version it is taken for the head's, unless the
        -- head moved since the last append: then nobody can say. What comes without a count that can be used carries the
        -- last one on, but for one that counted context blocks which the next request does not have in full.
        measured_tokens = case
            when p_usage.input_tokens is not null and coalesce(p_usage.version = c.head_version, c.head_moved_at <> c.next_seq)
            then p_usage.input_tokens + p_usage.output_tokens + v_newer
            when not p_facts.has_request or c.turn_context_tokens = 0 then c.measured_tokens + v_total end,
        measured_input_tokens = case
            when p_usage.input_tokens is not null and coalesce(p_usage.version = c.head_version, c.head_moved_at <> c.next_seq)
            then p_usage.input_tokens
            when not p_facts.has_request or c.turn_context_tokens = 0 then c.measured_input_tokens end,
        measured_version = case
            when p_usage.input_tokens is not null and coalesce(p_usage.version = c.head_version, c.head_moved_at <> c.next_seq)
            then c.head_version else c.measured_version end,
        measured_seq = case
            when p_usage.input_tokens is not null and coalesce(p_usage.version = c.head_version, c.head_moved_at <> c.next_seq)
            then c.next_seq + v_count else c.measured_seq end,
        ratio_samples = coalesce(v_samples, c.ratio_samples),
        token_ratio = coalesce(v_ratio, c.token_ratio),
        unstored_tokens = coalesce(v_unstored, c.unstored_tokens),
        last_count = coalesce(v_last_count, c.last_count),
        broken_through = case
            when p_facts.sound and c.open_calls = p_facts.leading_results
                and (c.context_messages > 0 or p_messages.roles[1] = 'user')
            then c.broken_through else c.next_seq + v_count - 1 end,
        open_calls = p_facts.trailing_calls,
        in_loop = p_facts.ends_in_loop,
        loop_has_thinking = p_facts.thinking_in_loop or (c.loop_has_thinking and not p_facts.has_request),
        strip_thinking_through = case
            when v_unlike_view
                or v_has_thinking and not coalesce(p_usage.version = c.head_version, c.head_moved_at <> c.next_seq)
            then c.next_seq + v_count - 1 else c.strip_thinking_through end,
        check_due_at = coalesce(c.check_due_at, now()),
        check_request_id = case when c.check_due_at is null then p_request else c.check_request_id end,
        counted_cap = coalesce(c.counted_cap, c.result_cap, p_limits.result_cap),
        shape = case when c.next_seq = 0 then p_shape else c.shape end,
        mixed_shapes = c.mixed_shapes or (c.next_seq > 0 and c.shape is distinct from p_shape)
    where c.id = p_conversation and c.tenant_id = p_tenant
      and (p_expected_seq is null or c.next_seq = p_expected_seq)
    returning c.next_seq as next_seq, c.check_due_at = now() as queued,
        c.in_loop and c.loop_has_thinking as needs_its_prefix,
        c.pending_version as pending_version, coalesce(c.result_cap, p_limits.result_cap) as cap,
        case when c.measured_tokens is not null and c.measured_version = c.head_version then c.measured_tokens
             else ceil((c.context_tokens + c.fixed_tokens) * c.token_ratio)::integer + c.unstored_tokens
             end as context_tokens
    into v;
    if not found then
        select c.next_seq as next_seq into v from public.conversations as c
            where c.id = p_conversation and c.tenant_id = p_tenant;
        outcome := case when found then 'out_of_order' else 'missing' end;
        first_seq := v.next_seq;
        return;
    end if;

    outcome := 'appended';
    first_seq := v.next_seq - v_count;
    last_seq := v.next_seq - 1;
    context_tokens := v.context_tokens;
    queued := v.queued;
    insert into public.messages (tenant_id, conversation_id, seq, role, content, tokens, view_tokens, bytes,
                                 result_chars, is_request, has_thinking, shape, sent, said_at, is_undated)
    select p_tenant, p_conversation, v.next_seq - v_count + m.place::integer - 1, m.role, m.content, m.tokens + m.excess,
           m.tokens + m.excess - coalesce(p_messages.hidden[m.place], 0)
               - case when p_facts.longest_result <= v.cap or m.chars is null then 0
                      else public.tokens_over_cap(array[m.chars], v.cap) end,
           m.bytes, m.chars::integer[], m.request, m.thinking, p_shape, m.sent,
           v_times[m.place], case when v_times[m.place] is null then v_times is not null or null end
    from (select every.*, case when every.place = v_media then v_excess else 0 end as excess from unnest(p_messages.roles, p_messages.contents, p_messages.tokens, p_messages.bytes, p_messages.result_chars,
                p_messages.requests, p_messages.thinking, p_sent)
        with ordinality as every (role, content, tokens, bytes, chars, request, thinking, sent, place)) as m;
    if v.pending_version is not null and not v.needs_its_prefix then
        perform public.move_head(p_conversation, v.pending_version);
        select ceil((c.context_tokens + c.fixed_tokens) * c.token_ratio) + c.unstored_tokens into context_tokens
            from public.conversations as c where c.id = p_conversation;
    end if;
    if p_context.blocks is not null then
        perform public.add_context_blocks(
            p_tenant, p_conversation, p_request,
            case when p_facts.last_request >= 0 then v.next_seq - v_count + p_facts.last_request else v.next_seq - 1 end,
            p_context.blocks, p_context.carried_max_tokens, p_context.policy);
    end if;
    if p_key is not null then
        -- A concurrent request with the same key makes this fail; the caller asks again and gets the replay.
        insert into public.idempotency_keys (tenant_id, conversation_id, key, body_hash, first_seq, last_seq,
                                             context_tokens, queued)
        values (p_tenant, p_conversation, p_key, p_body_hash, v.next_seq - v_count, v.next_seq - 1,
                context_tokens, v.queued);
    end if;
end $$;

create function append_turn_at(p_times timestamp with time zone[], p_entries jsonb, p_tenant uuid, p_conversation uuid, p_request uuid, p_expected_seq integer, p_replace_from integer, p_key text, p_body_hash bytea, p_messages turn_messages, p_facts turn_facts, p_usage turn_usage, p_context turn_context, p_limits context_limits, p_shape text, p_sent json[], OUT outcome text, OUT first_seq integer, OUT last_seq integer, OUT context_tokens integer, OUT queued boolean)
language plpgsql as $$
begin
    perform set_config('app.message_times', p_times::text, true);
    select a.* into outcome, first_seq, last_seq, context_tokens, queued
    from public.append_turn_with_entries(p_entries, p_tenant, p_conversation, p_request, p_expected_seq, p_replace_from,
                                         p_key, p_body_hash, p_messages, p_facts, p_usage, p_context, p_limits,
                                         p_shape, p_sent) as a;
    -- Turns share transactions.
    perform set_config('app.message_times', '', true);
end $$;

create function append_turn_with_entries(p_entries jsonb, p_tenant uuid, p_conversation uuid, p_request uuid, p_expected_seq integer, p_replace_from integer, p_key text, p_body_hash bytea, p_messages turn_messages, p_facts turn_facts, p_usage turn_usage, p_context turn_context, p_limits context_limits, p_shape text, p_sent json[], OUT outcome text, OUT first_seq integer, OUT last_seq integer, OUT context_tokens integer, OUT queued boolean)
language plpgsql as $$
declare
    v_most constant integer := 200;
    v_rules jsonb;
    v_is_first boolean;
begin
    select a.* into outcome, first_seq, last_seq, context_tokens, queued
    from public.append_turn(p_tenant, p_conversation, p_request, p_expected_seq, p_replace_from, p_key, p_body_hash,
                            p_messages, p_facts, p_usage, p_context, p_limits, p_shape, p_sent) as a;
    if outcome <> 'appended' then
        return;
    end if;
    select coalesce(c.rules, '[]') into v_rules from public.conversations as c where c.id = p_conversation;
    v_is_first := not exists (select from public.messages as m where m.conversation_id = p_conversation
                              and m.seq < append_turn_with_entries.first_seq and m.superseded_at is null);
    insert into public.pins (id, tenant_id, conversation_id, seq, text, source, request_id)
    select e.id, p_tenant, p_conversation, append_turn_with_entries.first_seq + e.place, e.text, e.source, p_request
    from (select distinct on (r.text, r.source) r.*
          from jsonb_to_recordset(p_entries) as r (id uuid, place integer, text text, source text, if_first boolean)
          where r.if_first is null or r.if_first = v_is_first
          order by r.text, r.source, r.place, r.id) as e
    where case when e.source = 'detected'
               then not exists (select from jsonb_array_elements(v_rules) as known where known ->> 2 = e.text)
               else exists (select from jsonb_array_elements(v_rules) as known where known ->> 3 = 'detected') end
    order by e.place, e.id
    limit greatest(0, v_most - jsonb_array_length(v_rules));
end $$;

create function append_turn_with_media(p_media jsonb, p_times timestamp with time zone[], p_entries jsonb, p_tenant uuid, p_conversation uuid, p_request uuid, p_expected_seq integer, p_replace_from integer, p_key text, p_body_hash bytea, p_messages turn_messages, p_facts turn_facts, p_usage turn_usage, p_context turn_context, p_limits context_limits, p_shape text, p_sent json[], OUT outcome text, OUT first_seq integer, OUT last_seq integer, OUT context_tokens integer, OUT queued boolean)
language plpgsql as $$
begin
    select a.* into outcome, first_seq, last_seq, context_tokens, queued
    from public.append_turn_at(p_times, p_entries, p_tenant, p_conversation, p_request, p_expected_seq, p_replace_from,
                               p_key, p_body_hash, p_messages, p_facts, p_usage, p_context, p_limits, p_shape,
                               p_sent) as a;
    if outcome <> 'appended' then
        return;
    end if;
    insert into public.message_media (tenant_id, conversation_id, seq, images, image_side, documents, document_pages, bytes)
    select p_tenant, p_conversation, append_turn_with_media.first_seq + f.place, f.images, f.image_side, f.documents,
           f.document_pages, f.bytes
    from jsonb_to_recordset(p_media) as f (place integer, images integer, image_side integer, documents integer,
                                           document_pages integer, bytes bigint);
    update public.conversations as c set newest_media = append_turn_with_media.last_seq where c.id = p_conversation;
end $$;

create function as_sent(p_role text, p_content json, p_sent json) returns text
language sql stable as $$
    select case
        when p_sent is null then '{"role":"' || p_role || '","content":' || p_content::text || '}'
        when pg_column_size(p_sent) <= 512 and json_typeof(p_sent) = 'array'
            then (p_sent ->> 0) || p_content::text || (p_sent ->> 1)
        else p_sent::text
    end
$$;

create function backlog() returns TABLE(due_checks bigint, oldest_due_check_seconds double precision, queued_runs bigint, running_runs bigint, expired_leases bigint, dead_runs bigint)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select checks.due, checks.oldest, active.queued, active.running, active.expired, dead.runs
    from (select count(*) as due, coalesce(extract(epoch from now() - min(c.check_due_at)), 0)::pg_catalog.float8 as oldest
          from public.conversations as c where c.check_due_at is not null) as checks,
         (select count(*) filter (where r.state = 'queued') as queued,
                 count(*) filter (where r.state = 'running') as running,
                 count(*) filter (where r.state = 'running' and r.lease_expires_at < now()) as expired
          from public.runs as r where r.state in ('queued', 'running')) as active,
         (select count(*) as runs from public.runs as r where r.state = 'dead') as dead
$$;
alter function backlog() owner to palimpsest_background;
revoke execute on function backlog() from public;
grant execute on function backlog() to palimpsest_service;

create function clear_checks(p_conversations uuid[], p_revisions bigint[]) returns SETOF uuid
language sql security definer set search_path = pg_catalog, public, pg_temp as $$
    select set_config('synchronous_commit', 'off', true),
           set_config('lock_timeout', case when cardinality(p_conversations) > 1 then '200ms' else '2s' end, true);
    update public.conversations as c set check_due_at = null
    from unnest(p_conversations, p_revisions) as seen (id, revision)
    where c.id = seen.id and c.revision = seen.revision and (c.check_due_at is null) is false
    returning c.id
$$;
alter function clear_checks(uuid[],bigint[]) owner to palimpsest_background;
revoke execute on function clear_checks(uuid[],bigint[]) from public;
grant execute on function clear_checks(uuid[],bigint[]) to palimpsest_service;

create function cold_snapshots(p_limit integer) returns TABLE(conversation_id uuid, tenant_id uuid)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select w.conversation_id, w.tenant_id from public.waiting_snapshots as w
    where w.cold_at < now() order by w.cold_at limit p_limit
$$;
alter function cold_snapshots(integer) owner to palimpsest_background;
revoke execute on function cold_snapshots(integer) from public;
grant execute on function cold_snapshots(integer) to palimpsest_service;

create function count_model_usage() returns trigger
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_tokens constant bigint := coalesce(new.model_input_tokens, 0) + coalesce(new.model_output_tokens, 0);
begin
    insert into public.model_usage as u (tenant_id, day, model_calls, input_tokens, output_tokens, cost_usd)
    values (new.tenant_id, (now() at time zone 'utc')::pg_catalog.date, new.model_calls, coalesce(new.model_input_tokens, 0),
            coalesce(new.model_output_tokens, 0), coalesce(new.cost_usd, 0))
    on conflict (tenant_id, day) do update
        set model_calls = u.model_calls + excluded.model_calls, input_tokens = u.input_tokens + excluded.input_tokens,
            output_tokens = u.output_tokens + excluded.output_tokens, cost_usd = u.cost_usd + excluded.cost_usd;
    -- From here on it is spent, and no longer reserved.
    update public.runs as r
        set reserved_tokens = greatest(0, r.reserved_tokens - v_tokens),
            reserved_cost_usd = greatest(0, r.reserved_cost_usd - coalesce(new.cost_usd, 0))
        where r.id = new.run_id and r.attempts = new.attempt and (r.reserved_tokens > 0 or r.reserved_cost_usd > 0);
    return null;
end $$;
alter function count_model_usage() owner to palimpsest_background;
revoke execute on function count_model_usage() from public;

create function counts_agree(p_estimated integer, p_counted integer, p_other_estimated integer, p_other_counted integer) returns boolean
language sql immutable as $$$$;

create function due_batches(p_limit integer) returns TABLE(batch_id uuid, tenant_id uuid, next_attempt_at timestamp with time zone)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select b.id, b.tenant_id, b.next_attempt_at from public.model_batches as b
    where b.state in ('wanted', 'sending', 'submitted', 'canceling', 'ended') and b.next_attempt_at <= now()
    order by b.next_attempt_at limit p_limit
$$;
alter function due_batches(integer) owner to palimpsest_background;
revoke execute on function due_batches(integer) from public;
grant execute on function due_batches(integer) to palimpsest_service;

create function due_deliveries(p_limit integer) returns TABLE(delivery_id uuid, tenant_id uuid)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select d.id, d.tenant_id from public.webhook_deliveries as d
    where d.state = 'pending' and d.next_attempt_at <= now()
    order by d.next_attempt_at limit p_limit
$$;
alter function due_deliveries(integer) owner to palimpsest_background;
revoke execute on function due_deliveries(integer) from public;
grant execute on function due_deliveries(integer) to palimpsest_service;

create function due_states(p_conversations uuid[], p_lock boolean) returns TABLE(conversation_id uuid, tenant_id uuid, tenant_policy jsonb, policy jsonb, model text, revision bigint, estimated integer, measured integer, context_bytes bigint, has_old_results boolean, tool_results_hold integer, summary_hold integer, trim_hold integer, pending_version integer, has_active_run boolean, counted_cap integer, stored integer, is_counted boolean)
language sql security definer set search_path = pg_catalog, public, pg_temp as $$
    select d.conversation_id, d.tenant_id, d.tenant_policy, d.policy, d.model, d.revision, d.estimated,
           d.measured, d.context_bytes, d.has_old_results, d.tool_results_hold, d.summary_hold, d.trim_hold,
           d.pending_version, d.has_active_run, d.counted_cap, d.stored, d.is_counted
    from public.due_states_with_media(p_conversations, p_lock) as d
$$;
alter function due_states(uuid[],boolean) owner to palimpsest_background;
revoke execute on function due_states(uuid[],boolean) from public;
grant execute on function due_states(uuid[],boolean) to palimpsest_service;

create function due_states_with_media(p_conversations uuid[], p_lock boolean) returns TABLE(conversation_id uuid, tenant_id uuid, tenant_policy jsonb, policy jsonb, model text, revision bigint, estimated integer, measured integer, context_bytes bigint, has_old_results boolean, tool_results_hold integer, summary_hold integer, trim_hold integer, pending_version integer, has_active_run boolean, counted_cap integer, stored integer, is_counted boolean, media bigint[])
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
begin
    if p_lock then
        perform set_config('lock_timeout', case when cardinality(p_conversations) > 1 then '200ms' else '2s' end, true);
        perform from public.conversations as c where c.id = any (p_conversations) order by c.id for no key update;
    end if;
    return query
    select c.id, c.tenant_id, t.policy, c.policy, c.model, c.revision,
           least(2147483647, ceil((c.context_tokens::bigint + c.fixed_tokens) * c.token_ratio)
                             + c.unstored_tokens)::integer,
           case when c.measured_version = c.head_version then c.measured_tokens end,
           c.context_bytes, c.newest_result > c.results_cut_through,
           c.tool_results_hold, c.summary_hold, c.trim_hold, c.pending_version,
           exists (select from public.runs as r
                   where r.conversation_id = c.id and r.state in ('queued', 'running') and r.block_id is null),
           c.counted_cap, least(2147483647, c.context_tokens::bigint + c.fixed_tokens)::integer, c.last_request < c.measured_seq,
           case when c.newest_media > c.media_checked_through then (
               select array[coalesce(sum(m.images), 0), coalesce(max(m.image_side), 0), coalesce(sum(m.documents), 0),
                            coalesce(sum(m.document_pages), 0), coalesce(sum(m.bytes), 0)]::bigint[]
               from (select f.images, f.image_side, f.documents, f.document_pages, f.bytes
                     from public.message_media as f
                     where f.conversation_id = c.id and f.seq > c.covers_through
                     union all
                     select s.media[1], s.media[2], s.media[3], s.media[4], s.media[5]
                     from public.snapshot_parts as s
                     where s.conversation_id = c.id and s.version = c.head_version) as m) end
    from public.conversations as c join public.tenants as t on t.id = c.tenant_id
    where c.id = any (p_conversations) and (c.check_due_at is null) is false;
end $$;
alter function due_states_with_media(uuid[],boolean) owner to palimpsest_background;
revoke execute on function due_states_with_media(uuid[],boolean) from public;
grant execute on function due_states_with_media(uuid[],boolean) to palimpsest_service;

create function due_waiting_summaries(p_limit integer) returns TABLE(run_id uuid, tenant_id uuid)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select w.run_id, w.tenant_id from public.waiting_summaries as w where w.done_at is null and w.not_before <= now()
    order by row_number() over (partition by w.tenant_id order by w.created_at, w.run_id), w.created_at limit p_limit
$$;
alter function due_waiting_summaries(integer) owner to palimpsest_background;
revoke execute on function due_waiting_summaries(integer) from public;
grant execute on function due_waiting_summaries(integer) to palimpsest_service;

create function erase_conversation(p_id uuid, p_conversation uuid, p_asked_for text, p_key uuid, p_request uuid) returns uuid
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_tenant constant pg_catalog.uuid := nullif(current_setting('app.tenant_id', true), '')::pg_catalog.uuid;
    v_at pg_catalog.timestamptz;
    v_number integer;
    v_previous pg_catalog.bytea;
    v_messages integer;
    v_snapshots integer;
    v_blocks integer;
    v_pins integer;
    v_runs integer;
    v_steps integer;
    v_batches integer;
    v_deliveries integer;
    v_keys integer;
begin
    -- One after the other within a tenant: each proof needs the one before it.
    perform pg_advisory_xact_lock(hashtextextended('palimpsest.erasures' || v_tenant::pg_catalog.text, 0));
    -- The conversation before all that belongs to it, as everywhere: whatever is under way ends first, or finds it gone.
    perform from public.conversations as c
        where c.id = p_conversation and c.tenant_id = v_tenant and c.erased_at is null for update;
    if not found then
        return null;
    end if;
    v_at := clock_timestamp();
    update public.conversations as c
        set erased_at = v_at, external_id = null, user_ref = null, model = null, system = null, tools = null, policy = '{}',
            metadata = '{}', open_calls = '{}', head_version = 0, pending_version = null, covers_through = -1,
            check_due_at = null, check_request_id = null, revision = public.next_revision(c.revision)
        where c.id = p_conversation;
    update public.runs as r
        set state = case when r.state in ('queued', 'running', 'dead') then 'failed' else r.state end,
            reason = case when r.state in ('queued', 'running') then 'erased' else r.reason end,
            finished_at = case when r.state in ('queued', 'running') then v_at else r.finished_at end,
            error = null, instructions = null, policy = public.without_words(r.policy), block_id = null,
            lease_token = null, lease_expires_at = null
        where r.conversation_id = p_conversation;
    get diagnostics v_runs = row_count;
    update public.run_steps as s set detail = null, error = null
        where s.run_id in (select r.id from public.runs as r where r.conversation_id = p_conversation);
    get diagnostics v_steps = row_count;
    delete from public.webhook_deliveries as d
        where d.run_id in (select r.id from public.runs as r where r.conversation_id = p_conversation);
    get diagnostics v_deliveries = row_count;
    update public.model_batches as b set answers = null, error = null, canary = '', fingerprint = ''
        where b.conversation_id = p_conversation;
    get diagnostics v_batches = row_count;
    -- What the provider has, or may have, is canceled there, and what it has cost is written down.
    update public.model_batches as b
        set state = case when b.state = 'wanted' then 'superseded' else 'canceling' end, reason = 'erased', attempts = 0,
            failures = 0, next_attempt_at = v_at, finished_at = case when b.state = 'wanted' then v_at end
        where b.conversation_id = p_conversation
            and b.state in ('wanted', 'sending', 'submitted', 'canceling', 'ended');
    perform set_config('palimpsest.erasure', p_conversation::pg_catalog.text, true);
    delete from public.messages as m where m.conversation_id = p_conversation;
    get diagnostics v_messages = row_count;
    delete from public.snapshot_parts as s where s.conversation_id = p_conversation;
    get diagnostics v_snapshots = row_count;
    perform set_config('palimpsest.erasure', '', true);
    delete from public.context_blocks as b where b.conversation_id = p_conversation;
    get diagnostics v_blocks = row_count;
    delete from public.pins as p where p.conversation_id = p_conversation;
    get diagnostics v_pins = row_count;
    delete from public.idempotency_keys as k where k.conversation_id = p_conversation;
    get diagnostics v_keys = row_count;
    delete from public.assemblies as a where a.conversation_id = p_conversation;

    select e.number, e.proof into v_number, v_previous from public.erasures as e
        where e.tenant_id = v_tenant order by e.number desc limit 1;
    v_number := coalesce(v_number, 0) + 1;
    insert into public.erasures (id, tenant_id, number, conversation_id, asked_for, key_id, request_id, message_count,
                                 snapshot_count, context_block_count, pin_count, run_count, step_count, batch_count,
                                 delivery_count, idempotency_key_count, proof, erased_at)
    values (p_id, v_tenant, v_number, p_conversation, p_asked_for, p_key, p_request, v_messages, v_snapshots, v_blocks,
            v_pins, v_runs, v_steps, v_batches, v_deliveries, v_keys,
            sha256(convert_to(concat_ws('|', coalesce(encode(v_previous, 'hex'), ''), v_number, p_id, v_tenant,
                p_conversation, p_asked_for, coalesce(p_key::pg_catalog.text, ''), coalesce(p_request::pg_catalog.text, ''),
                to_char(v_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), v_messages, v_snapshots, v_blocks,
                v_pins, v_runs, v_steps, v_batches, v_deliveries, v_keys), 'UTF8')),
            v_at);
    return p_id;
end $$;
alter function erase_conversation(uuid,uuid,text,uuid,uuid) owner to palimpsest_background;
revoke execute on function erase_conversation(uuid,uuid,text,uuid,uuid) from public;
grant execute on function erase_conversation(uuid,uuid,text,uuid,uuid) to palimpsest_service;

create function expire_batches(p_seconds double precision, p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_before constant pg_catalog.timestamptz := now() - make_interval(secs => p_seconds);
    v_removed integer;
begin
    delete from public.model_batches as b
        where b.id = any (array(
            select o.id from public.model_batches as o
            where o.id < public.first_id_at(v_before) and o.finished_at < v_before
                and o.state not in ('wanted', 'sending', 'submitted', 'canceling', 'ended')
            order by o.id limit p_limit for update skip locked));
    get diagnostics v_removed = row_count;
    return v_removed;
end $$;
alter function expire_batches(double precision,integer) owner to palimpsest_background;
revoke execute on function expire_batches(double precision,integer) from public;
grant execute on function expire_batches(double precision,integer) to palimpsest_service;

create function expire_console_sessions(p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_removed integer;
begin
    delete from public.console_sessions as s
        where s.token_hash = any (array(
            select o.token_hash from public.console_sessions as o
            where o.expires_at < now() - interval '1 day'
            order by o.expires_at limit p_limit for update skip locked));
    get diagnostics v_removed = row_count;
    return v_removed;
end $$;
alter function expire_console_sessions(integer) owner to palimpsest_background;
revoke execute on function expire_console_sessions(integer) from public;
grant execute on function expire_console_sessions(integer) to palimpsest_service;

create function expire_deliveries(p_seconds double precision, p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_removed integer;
begin
    delete from public.webhook_deliveries as d
        where d.id = any (array(
            select o.id from public.webhook_deliveries as o
            where o.id < public.first_id_at(now() - make_interval(secs => p_seconds)) and o.state <> 'pending'
            order by o.id limit p_limit for update skip locked));
    get diagnostics v_removed = row_count;
    return v_removed;
end $$;
alter function expire_deliveries(double precision,integer) owner to palimpsest_background;
revoke execute on function expire_deliveries(double precision,integer) from public;
grant execute on function expire_deliveries(double precision,integer) to palimpsest_service;

create function expire_idempotency_keys(p_seconds double precision, p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_removed integer;
begin
    delete from public.idempotency_keys as k
        where k.ctid = any (array(
            select o.ctid from public.idempotency_keys as o
            where o.created_at < now() - make_interval(secs => p_seconds)
            order by o.created_at limit p_limit for update skip locked));
    get diagnostics v_removed = row_count;
    return v_removed;
end $$;
alter function expire_idempotency_keys(double precision,integer) owner to palimpsest_background;
revoke execute on function expire_idempotency_keys(double precision,integer) from public;
grant execute on function expire_idempotency_keys(double precision,integer) to palimpsest_service;

create function expire_leases(p_process uuid, p_workers text[]) returns integer
language sql security definer set search_path = pg_catalog, public, pg_temp as $$
    with lost as (
        select r.id from public.runs as r
        where r.state = 'running' and r.process_id = p_process and r.lease_expires_at >= now()
            and (p_workers is null or r.worker = any (p_workers))
        for update of r skip locked
    ), expired as (
        update public.runs as r set lease_expires_at = now() from lost where r.id = lost.id returning r.id
    )
    select count(*)::pg_catalog.int4 from expired
$$;
alter function expire_leases(uuid,text[]) owner to palimpsest_background;
revoke execute on function expire_leases(uuid,text[]) from public;
grant execute on function expire_leases(uuid,text[]) to palimpsest_service;

create function expire_missed_leases(p_beats integer, p_beat_seconds double precision, p_watched double precision, p_lease double precision) returns TABLE(process_id uuid, leases integer)
language sql security definer set search_path = pg_catalog, public, pg_temp as $$
    with held as (
        select r.id, r.lease_expires_at, p.seen_at, p_beats * coalesce(p.beat_seconds, p_beat_seconds) as patience
        from public.runs as r left join public.processes as p on p.id = r.process_id
        where r.state = 'running' and r.process_id is not null and r.lease_expires_at >= now()
    ), lost as (
        select r.id from public.runs as r join held as h on h.id = r.id
        where h.patience <= p_watched
            and (h.seen_at is null or h.seen_at < now() - make_interval(secs => h.patience))
            and r.lease_expires_at < now() + make_interval(secs => p_lease - h.patience)
        for update of r skip locked
    ), expired as (
        update public.runs as r set lease_expires_at = now() from lost where r.id = lost.id returning r.process_id
    )
    select e.process_id, count(*)::pg_catalog.int4 from expired as e group by e.process_id
$$;
alter function expire_missed_leases(integer,double precision,double precision,double precision) owner to palimpsest_background;
revoke execute on function expire_missed_leases(integer,double precision,double precision,double precision) from public;
grant execute on function expire_missed_leases(integer,double precision,double precision,double precision) to palimpsest_service;

create function expire_recall_requests(p_seconds double precision, p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_removed integer;
begin
    delete from public.recall_requests as r
        where r.id = any (array(
            select o.id from public.recall_requests as o
            where o.id < public.first_id_at(now() - make_interval(secs => p_seconds))
            order by o.id limit p_limit for update skip locked));
    get diagnostics v_removed = row_count;
    return v_removed;
end $$;
alter function expire_recall_requests(double precision,integer) owner to palimpsest_background;
revoke execute on function expire_recall_requests(double precision,integer) from public;
grant execute on function expire_recall_requests(double precision,integer) to palimpsest_service;

create function expire_runs(p_after uuid, p_seconds double precision, p_limit integer, OUT last_seen uuid, OUT removed integer)
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_before constant pg_catalog.timestamptz := now() - make_interval(secs => p_seconds);
    v_seen constant pg_catalog.uuid[] := array(
        select r.id from public.runs as r where r.id > p_after and r.id < public.first_id_at(v_before)
        order by r.id limit p_limit);
    v_gone pg_catalog.uuid[];
begin
    last_seen := v_seen[p_limit];
    v_gone := array(
        select r.id from public.runs as r
        where r.id = any (v_seen) and r.state not in ('queued', 'running') and r.finished_at < v_before
            and not exists (select from public.snapshot_parts as s where s.run_id = r.id)
            and not exists (select from public.webhook_deliveries as d where d.run_id = r.id)
            and not exists (select from public.waiting_summaries as w where w.run_id = r.id and w.done_at is null)
        for update skip locked);
    delete from public.run_steps as s where s.run_id = any (v_gone);
    delete from public.runs as r where r.id = any (v_gone);
    get diagnostics removed = row_count;
end $$;
alter function expire_runs(uuid,double precision,integer) owner to palimpsest_background;
revoke execute on function expire_runs(uuid,double precision,integer) from public;
grant execute on function expire_runs(uuid,double precision,integer) to palimpsest_service;

create function expire_snapshots(p_after uuid, p_seconds double precision, p_limit integer, OUT last_seen uuid, OUT removed integer)
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_before constant pg_catalog.timestamptz := now() - make_interval(secs => p_seconds);
    v_seen constant pg_catalog.uuid[] := array(
        select c.id from public.conversations as c where c.id > p_after order by c.id limit p_limit);
    v record;
    v_count integer;
begin
    last_seen := v_seen[p_limit];
    removed := 0;
    perform set_config('palimpsest.retention', 'snapshots', true);
    for v in
        -- Whatever else is on one of these ways has a child on it. Looked for in one pass over all of them: one by one, each
        -- would be looked for among as many of its conversation.
        select c.id as conversation_id, ending.version from public.conversations as c
            join (select s.conversation_id, s.version from public.snapshot_parts as s
                  where s.conversation_id = any (v_seen) and s.created_at < v_before
                  except
                  select s.conversation_id, s.parent_version from public.snapshot_parts as s
                  where s.conversation_id = any (v_seen)) as ending
                on ending.conversation_id = c.id and ending.version not in (c.head_version, coalesce(c.pending_version, 0))
        where not exists (select from public.runs as r
                          where r.conversation_id = c.id and r.state in ('queued', 'running'))
        -- As long as the row is locked no head can move to a snapshot that goes.
        limit p_limit for no key update of c skip locked
    loop
        delete from public.snapshot_parts as s
            where s.conversation_id = v.conversation_id and s.version = v.version
                and not exists (select from public.snapshot_parts as child
                                where child.conversation_id = s.conversation_id and child.parent_version = s.version);
        get diagnostics v_count = row_count;
        removed := removed + v_count;
    end loop;
    perform set_config('palimpsest.retention', '', true);
end $$;
alter function expire_snapshots(uuid,double precision,integer) owner to palimpsest_background;
revoke execute on function expire_snapshots(uuid,double precision,integer) from public;
grant execute on function expire_snapshots(uuid,double precision,integer) to palimpsest_service;

create function expire_turn_usages(p_seconds double precision, p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_removed integer;
begin
    delete from public.turn_usages as u
        where (u.conversation_id, u.seq) in (
            select o.conversation_id, o.seq from public.tenants as t cross join lateral (
                select e.conversation_id, e.seq from public.turn_usages as e
                where e.tenant_id = t.id and e.answered_at < now() - make_interval(secs => p_seconds)
                order by e.answered_at limit p_limit for update skip locked) as o
            limit p_limit);
    get diagnostics v_removed = row_count;
    return v_removed;
end $$;
alter function expire_turn_usages(double precision,integer) owner to palimpsest_background;
revoke execute on function expire_turn_usages(double precision,integer) from public;
grant execute on function expire_turn_usages(double precision,integer) to palimpsest_service;

create function find_console_session(p_token_hash bytea) returns TABLE(tenant_id uuid, key_id uuid, scopes text[], policy text)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select k.tenant_id, k.id, k.scopes, t.policy::pg_catalog.text
    from public.console_sessions as s
        join public.api_keys as k on k.id = s.key_id
        join public.tenants as t on t.id = k.tenant_id
    where s.token_hash = p_token_hash and not s.is_ticket and s.ended_at is null and s.expires_at > now()
        and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
$$;
alter function find_console_session(bytea) owner to palimpsest_background;
revoke execute on function find_console_session(bytea) from public;
grant execute on function find_console_session(bytea) to palimpsest_service;

create function first_id_at(p_time timestamp with time zone) returns uuid
language sql immutable as $$
    select (lpad(to_hex((extract(epoch from p_time) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

create function forget_gateway() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    delete from public.gateway_prefixes as p where p.conversation_id = new.id;
    delete from public.gateway_recalls as r where r.conversation_id = new.id;
    delete from public.gateway_conversations as g where g.conversation_id = new.id;
    return new;
end $$;

create function forget_holder() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    new.process_id := null;
    return new;
end $$;

create function forget_media() returns trigger
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
begin
    if new.erased_at is not null then
        delete from public.message_media as f where f.conversation_id = new.id;
    elsif new.edits <> old.edits then
        delete from public.message_media as f
        using public.messages as m
        where f.conversation_id = new.id and m.conversation_id = f.conversation_id and m.seq = f.seq
          and m.superseded_at is not null;
    end if;
    if new.head_version < old.head_version then
        new.media_checked_through := -1;
    end if;
    return new;
end $$;
alter function forget_media() owner to palimpsest_background;
revoke execute on function forget_media() from public;

create function forget_recall_requests() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    delete from public.recall_requests as r
        where r.of_user and r.request_id in (
            select o.request_id from public.recall_requests as o where o.conversation_id = new.id and o.of_user);
    delete from public.recall_requests as r where r.conversation_id = new.id;
    return new;
end $$;

create function forget_recall_segments() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    delete from public.recall_segments as s where s.conversation_id = new.id;
    return new;
end $$;

create function forget_turn_usages() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    delete from public.turn_usages as u where u.conversation_id = new.id;
    return new;
end $$;

create function forget_waiting_snapshots() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    delete from public.waiting_snapshots as w where w.conversation_id = new.id;
    return new;
end $$;

create function gateway_begin(p_tenant uuid, p_id uuid, p_named uuid, p_external_id text, p_user_ref text, p_model text, p_metadata jsonb, p_circle bytea, p_in_session boolean, p_branch_of uuid) returns uuid
language plpgsql as $$
declare
    v_named record;
    v_branch_of uuid := p_branch_of;
begin
    perform set_config('app.tenant_id', p_tenant::text, true);
    select c.id, c.next_seq into v_named from public.conversations as c
        where c.tenant_id = p_tenant and (c.id = p_named or c.external_id = p_external_id) limit 1;
    if found and v_named.next_seq = 0 then
        insert into public.gateway_conversations (conversation_id, tenant_id, circle)
        values (v_named.id, p_tenant, p_circle) on conflict do nothing;
        return v_named.id;
    end if;
    if v_branch_of is null and found then
        v_branch_of := v_named.id;
    end if;
    if v_branch_of is null and p_in_session then
        select g.conversation_id into v_branch_of from public.gateway_conversations as g
            cross join lateral (
                select count(*) as requests, max(p.answered_at) as last from public.gateway_prefixes as p
                where p.conversation_id = g.conversation_id and p.answered_at is not null) as answered
            where g.tenant_id = p_tenant and g.circle = p_circle and answered.requests > 1
            order by answered.last desc limit 1;
    end if;
    insert into public.conversations (id, tenant_id, external_id, user_ref, model, metadata)
    values (p_id, p_tenant, case when v_named.id is null then p_external_id end, p_user_ref, p_model,
            case when v_branch_of is null then p_metadata
                 else jsonb_set(p_metadata, '{gateway,branch_of}',
                                to_jsonb('conv_' || replace(v_branch_of::text, '-', ''))) end)
    on conflict do nothing;
    if not found then
        -- Somebody else has made one of that name meanwhile.
        insert into public.conversations (id, tenant_id, user_ref, model, metadata)
        values (p_id, p_tenant, p_user_ref, p_model, p_metadata);
    end if;
    insert into public.gateway_conversations (conversation_id, tenant_id, circle, branch_of)
    values (p_id, p_tenant, p_circle, v_branch_of);
    return p_id;
end $$;

create function gateway_find(p_tenant uuid, p_keys bytea[], p_only uuid, p_rows integer, p_external_id text, OUT place integer, OUT conversation_id uuid, OUT seq integer, OUT is_superseded boolean, OUT next_seq integer, OUT after text, OUT removed integer[], OUT strip_thinking_through integer, OUT broken_through integer, OUT policy text, OUT model text, OUT version integer, OUT covers_through integer, OUT head text, OUT head_seqs integer[], OUT head_tokens integer, OUT covered_tokens bigint, OUT recalls text)
language plpgsql stable as $$
declare
    c record;
begin
    perform set_config('app.tenant_id', p_tenant::text, true);
    if p_keys = '{}' then
        select 0, r.id, -1, false into place, conversation_id, seq, is_superseded
        from public.conversations as r
        where r.tenant_id = p_tenant and (r.id = p_only or r.external_id = p_external_id)
            and not exists (select from public.gateway_prefixes as p where p.conversation_id = r.id)
        limit 1;
    else
        select k.place, f.conversation_id, f.seq, f.is_superseded
        into place, conversation_id, seq, is_superseded
        from (select each.key, each.place::integer as place
              from unnest(p_keys) with ordinality as each (key, place) order by each.place::integer desc) as k
            cross join lateral (
                select n.conversation_id, n.seq, m.superseded_at is not null as is_superseded
                from (select p.conversation_id, p.seq from public.gateway_prefixes as p
                      where p.tenant_id = p_tenant and p.key = k.key and (p_only is null or p.conversation_id = p_only)
                      order by p.conversation_id desc limit 8) as n
                    join public.messages as m on m.conversation_id = n.conversation_id and m.seq = n.seq
                order by m.superseded_at is not null, n.conversation_id desc limit 1) as f
        order by k.place desc limit 1;
    end if;
    if place is null or is_superseded then
        return;
    end if;
    select r.* into c from public.conversations as r where r.id = gateway_find.conversation_id;
    next_seq := c.next_seq;
    strip_thinking_through := c.strip_thinking_through;
    broken_through := c.broken_through;
    policy := c.policy::text;
    model := c.model;
    select '[' || string_agg('[' || m.seq || ',"' || m.role || '",' || m.content::text || ']', ',' order by m.seq) || ']'
    into after
    from (select o.seq, o.role, o.content from public.messages as o
          where o.conversation_id = gateway_find.conversation_id and o.seq > gateway_find.seq and o.superseded_at is null
          order by o.seq limit p_rows) as m;
    if c.edits > 0 then
        select array_agg(m.seq order by m.seq) into removed from public.messages as m
            where m.conversation_id = gateway_find.conversation_id and m.superseded_at is not null;
    end if;
    if c.head_version > 0 then
        select h.* into version, covers_through, head, head_seqs, head_tokens, covered_tokens
        from public.gateway_head(p_tenant, c.id, c.head_version) as h;
    end if;
    if exists (select from public.gateway_recalls as r where r.conversation_id = c.id) then
        recalls := public.gateway_recalls_of(p_tenant, c.id, coalesce(covers_through, -1), coalesce(head_seqs, '{}'));
    end if;
end $$;

create function gateway_head(p_tenant uuid, p_conversation uuid, p_version integer, OUT version integer, OUT covers_through integer, OUT head text, OUT head_seqs integer[], OUT head_tokens integer, OUT covered_tokens bigint)
language plpgsql stable as $$
declare
    v_follows integer[];
begin
    perform set_config('app.tenant_id', p_tenant::text, true);
    select s.version, s.covers_through, s.seqs, s.tokens, s.follows,
           case when s.follows = '{}' then coalesce(s.messages::text, s.part || ']') end
    into version, covers_through, head_seqs, head_tokens, v_follows, head
    from public.snapshot_parts as s where s.conversation_id = p_conversation and s.version = p_version;
    if not found then
        return;
    end if;
    if v_follows <> '{}' then
        select string_agg(case when p.version = p_version then p.part || ']' else p.part end, '') into head
        from (select s.version, s.part from public.snapshot_parts as s
              where s.conversation_id = p_conversation and s.version between v_follows[1] and p_version
                  and s.version = any (v_follows || p_version)
              order by s.version) as p;
    end if;
    select coalesce(sum(m.tokens), 0) into covered_tokens from public.messages as m
        where m.conversation_id = p_conversation and m.seq <= gateway_head.covers_through and m.superseded_at is null;
end $$;

create function gateway_head_below(p_tenant uuid, p_conversation uuid, p_from integer) returns TABLE(version integer, covers_through integer, head text, head_seqs integer[], head_tokens integer, covered_tokens bigint)
language plpgsql stable as $$
begin
    perform set_config('app.tenant_id', p_tenant::text, true);
    return query select h.* from public.gateway_head(
        p_tenant, p_conversation, public.newest_version_below(p_conversation, p_from)) as h where h.version is not null;
end $$;

create function gateway_note(p_tenant uuid, p_conversation uuid, p_seqs integer[], p_keys bytea[], p_last integer, p_outcome text, p_saved integer, p_version integer, p_retried boolean, p_aborted boolean, p_recalls json) returns void
language plpgsql as $$
begin
    perform set_config('app.tenant_id', p_tenant::text, true);
    insert into public.gateway_prefixes (tenant_id, conversation_id, seq, key)
    select p_tenant, p_conversation, n.seq, n.key from unnest(p_seqs, p_keys) as n (seq, key)
    on conflict on constraint pk_gateway_prefixes do update set key = excluded.key;
    update public.gateway_prefixes as p
    set outcome = p_outcome, saved_tokens = p_saved, head_version = p_version, retried = p_retried, aborted = p_aborted,
        answered_at = now()
    where p.conversation_id = p_conversation and p.seq = p_last;
    insert into public.gateway_recalls (tenant_id, conversation_id, seq, through_seq, resent, shown, results,
        response_id, last_response_id)
    select p_tenant, p_conversation, (r.value ->> 0)::integer, (r.value ->> 1)::integer, (r.value ->> 2)::integer,
           r.value -> 3, r.value -> 4, r.value ->> 5, r.value ->> 6
    from json_array_elements(p_recalls) as r
    on conflict on constraint pk_gateway_recalls do update set resent = excluded.resent;
end $$;

create function gateway_recalls_of(p_tenant uuid, p_conversation uuid, p_covers integer, p_head_seqs integer[]) returns text
language plpgsql stable as $$
begin
    perform set_config('app.tenant_id', p_tenant::text, true);
    return (
        select '[' || string_agg('[' || r.seq || ',' || r.through_seq || ',' || coalesce(r.resent::text, 'null') || ','
                                 || r.shown || ',' || r.results || ',' || e.messages || ']', ',' order by r.seq) || ']'
        from public.gateway_recalls as r
            cross join lateral (
                select bool_or(m.superseded_at is not null) as superseded,
                       '[' || string_agg(case
                           when m.seq <= p_covers and m.seq <> all (p_head_seqs) then 'null'
                           else public.as_sent(m.role, m.content, m.sent)
                           end, ',' order by m.seq) || ']' as messages
                from public.messages as m
                where m.conversation_id = r.conversation_id and m.seq between r.seq and r.through_seq) as e
        where r.conversation_id = p_conversation and not e.superseded);
end $$;

create function gateway_response(p_tenant uuid, p_id text, OUT last_response_id text, OUT results text)
language plpgsql stable as $$
begin
    perform set_config('app.tenant_id', p_tenant::text, true);
    select r.last_response_id, r.results::text into last_response_id, results from (
            select a.* from public.gateway_recalls as a
            where a.tenant_id = p_tenant and a.response_id = p_id offset 0) as r
        order by r.conversation_id desc, r.seq desc limit 1;
end $$;

create function guard_erased() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if public.is_there(new.conversation_id) then
        return new;
    end if;
    raise exception 'there is no such conversation' using errcode = 'PL404';
end $$;

create function guard_erased_batches() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if tg_op = 'INSERT' then
        if not public.is_there(new.conversation_id)
            and exists (select from public.conversations as c where c.id = new.conversation_id) then
            return null;
        end if;
        return new;
    end if;
    if not exists (select from public.conversations as c where c.id = new.conversation_id and c.erased_at is null) then
        new.answers := null;
        new.error := null;
    end if;
    return new;
end $$;

create function guard_erased_runs() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if public.is_there(new.conversation_id) then
        return new;
    end if;
    if new.state in ('queued', 'running') then
        raise exception 'there is no such conversation' using errcode = 'PL404';
    end if;
    new.error := null;
    new.instructions := null;
    new.policy := '{}';
    return new;
end $$;

create function guard_erased_steps() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if not exists (select from public.runs as r join public.conversations as c on c.id = r.conversation_id
                   where r.id = new.run_id and c.erased_at is null) then
        new.detail := null;
        new.error := null;
    end if;
    return new;
end $$;

create function guard_keys() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if old.revoked_at is not null and new.revoked_at is distinct from old.revoked_at then
        raise exception 'a revoked key stays revoked' using errcode = 'restrict_violation';
    end if;
    if old.expires_at is not null and (new.expires_at is null or new.expires_at > old.expires_at) then
        raise exception 'the life of a key is never made longer' using errcode = 'restrict_violation';
    end if;
    return new;
end $$;

create function guard_messages() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if tg_op = 'UPDATE' and old.superseded_at is null
        and row(new.tenant_id, new.conversation_id, new.seq, new.role, new.content::text, new.tokens,
                new.view_tokens, new.bytes, new.result_chars, new.is_request, new.has_thinking, new.created_at)
            is not distinct from
            row(old.tenant_id, old.conversation_id, old.seq, old.role, old.content::text, old.tokens,
                old.view_tokens, old.bytes, old.result_chars, old.is_request, old.has_thinking, old.created_at)
        -- What was sent may still be added by the transaction that wrote the message.
        and (row(new.shape, new.sent::text) is not distinct from row(old.shape, old.sent::text)
             or old.shape is null and old.xmin = pg_current_xact_id()::xid) then
        return new;
    end if;
    if tg_op = 'DELETE' and current_user = 'palimpsest_background'
        and current_setting('palimpsest.erasure', true) = old.conversation_id::text then
        return old;
    end if;
    raise exception 'messages are append-only' using errcode = 'restrict_violation';
end $$;

create function guard_sessions() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if old.ended_at is not null and new.ended_at is distinct from old.ended_at then
        raise exception 'a session that has ended stays so' using errcode = 'restrict_violation';
    end if;
    return new;
end $$;

create function guard_snapshots() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if tg_op = 'DELETE' and tg_table_name = 'snapshot_parts' and current_user = 'palimpsest_background'
        and (current_setting('palimpsest.retention', true) = 'snapshots'
             or current_setting('palimpsest.erasure', true) = old.conversation_id::text) then
        return old;
    end if;
    raise exception '% is append-only', tg_table_name using errcode = 'restrict_violation';
end $$;

create function is_reasoning_alone(p_conversation uuid, p_seq integer) returns boolean
language sql stable as $$
    select coalesce(bool_and(case when m.has_thinking then not exists (
            select from json_array_elements(m.content) as block
            where block ->> 'type' not in ('thinking', 'redacted_thinking')) else false end), false)
    from public.messages as m where m.conversation_id = p_conversation and m.seq = p_seq
$$;

create function is_there(p_conversation uuid) returns boolean
language plpgsql as $$
begin
    perform from public.conversations as c where c.id = p_conversation and c.erased_at is null for key share;
    return found;
end $$;

create function key_in_force(p_key uuid) returns TABLE(tenant_id uuid, secret_hash bytea, scopes text[], policy text, seconds_left double precision)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select k.tenant_id, k.secret_hash, k.scopes, t.policy::pg_catalog.text, extract(epoch from k.expires_at - now())::pg_catalog.float8
    from public.api_keys as k join public.tenants as t on t.id = k.tenant_id
    where k.id = p_key and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
$$;
alter function key_in_force(uuid) owner to palimpsest_background;
revoke execute on function key_in_force(uuid) from public;
grant execute on function key_in_force(uuid) to palimpsest_service;

create function known_batches(p_provider_ids text[]) returns SETOF text
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select b.provider_batch_id from public.model_batches as b where b.provider_batch_id = any (p_provider_ids)
$$;
alter function known_batches(text[]) owner to palimpsest_background;
revoke execute on function known_batches(text[]) from public;
grant execute on function known_batches(text[]) to palimpsest_service;

create function learn_count(p_counted integer, p_estimated integer, p_samples real[], p_ratio real, p_unstored integer, p_last integer[], OUT samples real[], OUT ratio real, OUT unstored integer, OUT last_count integer[])
language plpgsql immutable as $$
declare
    v_least integer := greatest(0, p_counted - 2 * p_estimated - 500);
    v_most integer := greatest(0, p_counted - p_estimated / 2 + 500);
    v_is_other boolean;
begin
    samples := p_samples;
    ratio := p_ratio;
    unstored := p_unstored;
    if unstored > v_most then
        -- What is sent along is never more than the whole.
        unstored := v_most;
    elsif unstored < v_least and cardinality(p_last) >= 4
        and public.counts_agree(p_estimated, p_counted, p_last[1], p_last[2])
        and public.counts_agree(p_estimated, p_counted, p_last[3], p_last[4])
        and public.counts_agree(p_last[1], p_last[2], p_last[3], p_last[4]) then
        v_least := greatest(v_least, p_last[2] - 2 * p_last[1] - 500, p_last[4] - 2 * p_last[3] - 500);
        v_most := least(v_most, greatest(0, p_last[2] - p_last[1] / 2 + 500), greatest(0, p_last[4] - p_last[3] / 2 + 500));
        if v_least <= v_most then
            unstored := least(v_most, greatest(v_least, round(p_counted - p_ratio * p_estimated)::integer));
        end if;
    end if;
    v_is_other := p_last is null or abs(p_estimated::bigint - p_last[1]) >= 200;
    last_count := case
        when v_is_other then (array[p_estimated, p_counted] || p_last)[:4]
        -- The history is nearly that of the last call: kept is the count that the next ones are held against.
        when abs(p_counted::bigint - p_last[2]) <= 500 then p_last
        else (array[p_estimated, p_counted] || p_last[3:4])[:4] end;
    if p_estimated >= 500 and p_counted <= unstored + 2::bigint * p_estimated + 500 then
        samples := (p_samples || greatest(0.5, least(2, (p_counted - unstored)::real / p_estimated))::real)
                   [greatest(1, cardinality(p_samples) - 3):];
        ratio := (select percentile_cont(0.5) within group (order by each) from unnest(samples) as each);
    end if;
end $$;

create function list_changed_rules() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    perform public.list_rules(c.conversation_id) from (select distinct conversation_id from changed) as c;
    return null;
end $$;

create function list_rules(p_conversation uuid) returns void
language sql as $$
    update public.conversations as c set rules = listed.rules, revision = public.next_revision(c.revision)
    from (select public.rules_in_force(p_conversation) as rules) as listed
    where c.id = p_conversation and c.rules is distinct from listed.rules
$$;

create function list_rules_of_rest() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    new.rules := case when new.erased_at is null then public.rules_in_force(new.id) end;
    return new;
end $$;

create function may_summarize(p_run uuid, p_per_tenant integer, p_overall integer) returns boolean
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_tenant pg_catalog.uuid;
    v record;
begin
    select r.tenant_id into v_tenant from public.runs as r where r.id = p_run and r.queue = 'summaries';
    if v_tenant is null then
        return true;
    end if;
    perform pg_advisory_xact_lock(hashtextextended(
        'palimpsest.summaries' || case when p_overall > 0 then '' else v_tenant::pg_catalog.text end, 0));
    select count(*) filter (where r.tenant_id = v_tenant) as own, count(*) as overall into v
        from public.runs as r
        where r.state = 'running' and r.queue = 'summaries' and r.lease_expires_at >= now() and r.id <> p_run;
    return (p_per_tenant = 0 or v.own < p_per_tenant) and (p_overall = 0 or v.overall < p_overall);
end $$;
alter function may_summarize(uuid,integer,integer) owner to palimpsest_background;
revoke execute on function may_summarize(uuid,integer,integer) from public;
grant execute on function may_summarize(uuid,integer,integer) to palimpsest_service;

create function model_spending() returns TABLE(tokens bigint, cost_usd numeric, waiting_summaries bigint)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select coalesce(sum(u.input_tokens + u.output_tokens), 0)::bigint, coalesce(sum(u.cost_usd), 0),
           (select count(*) from public.waiting_summaries as w where w.done_at is null)
    from public.model_usage as u where u.day = (now() at time zone 'utc')::pg_catalog.date
$$;
alter function model_spending() owner to palimpsest_background;
revoke execute on function model_spending() from public;
grant execute on function model_spending() to palimpsest_service;

create function model_totals() returns TABLE(model_calls bigint, input_tokens bigint, output_tokens bigint, cost_usd numeric)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select coalesce(sum(u.model_calls), 0)::bigint, coalesce(sum(u.input_tokens), 0)::bigint,
           coalesce(sum(u.output_tokens), 0)::bigint, coalesce(sum(u.cost_usd), 0)
    from public.model_usage as u
$$;
alter function model_totals() owner to palimpsest_background;
revoke execute on function model_totals() from public;
grant execute on function model_totals() to palimpsest_service;

create function move_head(p_conversation uuid, p_version integer) returns void
language sql as $$
    update public.conversations as c
    set head_version = p_version,
        last_version = greatest(c.last_version, p_version),
        pending_version = null,
        covers_through = s.covers_through,
        context_tokens = s.tokens + tail.tokens,
        context_messages = s.message_count + tail.messages,
        context_bytes = s.bytes + tail.bytes,
        context_exchanges = s.exchanges + tail.exchanges,
        head_moved_at = c.next_seq,
        strip_thinking_through = c.next_seq - 1,
        -- The hold of a restore is one on the restored head.
        tool_results_hold = case when c.held_by_restore then 0 else c.tool_results_hold end,
        summary_hold = case when c.held_by_restore then 0 else c.summary_hold end,
        trim_hold = case when c.held_by_restore then 0 else c.trim_hold end,
        held_by_restore = false,
        left_out = s.left_out,
        revision = public.next_revision(c.revision)
    from (select covers_through, tokens, message_count, bytes, exchanges,
                 (select string_agg(case when span ->> 0 = span ->> 1 then span ->> 0
                                         else (span ->> 0) || '-' || (span ->> 1) end, ', ' order by (span ->> 0)::integer)
                  from jsonb_array_elements(coverage) as span
                  where span ->> 2 = 'dropped'
                    and not (span ->> 0 = span ->> 1
                             and public.is_reasoning_alone(p_conversation, (span ->> 0)::integer))) as left_out
          from public.snapshot_parts where conversation_id = p_conversation and version = p_version
          union all select -1, 0, 0, 0, 0, null where p_version = 0) as s,
         lateral (select coalesce(sum(public.shown_tokens(m.tokens, m.view_tokens, m.result_chars, own.counted_cap)), 0)
                             ::integer as tokens,
                         count(*)::integer as messages,
                         coalesce(sum(m.bytes), 0) as bytes,
                         (count(*) filter (where m.is_request))::integer as exchanges
                  from public.messages as m join public.conversations as own on own.id = m.conversation_id
                  where m.conversation_id = p_conversation and m.seq > s.covers_through
                    and m.superseded_at is null) as tail
    where c.id = p_conversation
$$;

create function newest_version_below(p_conversation uuid, p_from integer) returns integer
language sql stable as $$
    select coalesce(max(chain.version), 0)
    from public.conversations as c
        cross join lateral public.snapshot_chain(p_conversation, c.head_version) as chain
        join public.snapshot_parts as s on s.conversation_id = p_conversation and s.version = chain.version
    where c.id = p_conversation and chain.covers_through < p_from
        and not exists (select from jsonb_array_elements(s.pins) as pin where (pin ->> 1)::integer >= p_from)
$$;

create function next_revision(p_revision bigint) returns bigint
language sql as $$
    select p_revision + 1 + floor(random() * 4294967296)::bigint
$$;

create function note_key_uses(p_keys uuid[], p_seconds_ago double precision[]) returns void
language sql security definer set search_path = pg_catalog, public, pg_temp as $$
    update public.api_keys as noted set last_used_at = now() - make_interval(secs => used.seconds_ago)
    from (select k.id, u.seconds_ago
          from unnest(p_keys, p_seconds_ago) as u (id, seconds_ago) join public.api_keys as k on k.id = u.id
          where k.last_used_at is null
             or k.last_used_at < now() - make_interval(secs => u.seconds_ago) - interval '1 minute'
          for no key update of k skip locked) as used
    where noted.id = used.id
$$;
alter function note_key_uses(uuid[],double precision[]) owner to palimpsest_background;
revoke execute on function note_key_uses(uuid[],double precision[]) from public;
grant execute on function note_key_uses(uuid[],double precision[]) to palimpsest_service;

create function offer_summary(p_per_tenant integer) returns TABLE(run_id uuid, tenant_id uuid)
language sql security definer set search_path = pg_catalog, public, pg_temp as $$
    update public.runs as offered set queued_at = now()
    where offered.id = (
        select r.id from public.runs as r
            join (select a.tenant_id,
                         count(*) filter (where a.state = 'running' and a.lease_expires_at >= now()) as under_way
                  from public.runs as a
                  where a.state in ('queued', 'running') and a.queue = 'summaries'
                  group by a.tenant_id) as load on load.tenant_id = r.tenant_id
        where r.state = 'queued' and r.queue = 'summaries' and (p_per_tenant = 0 or load.under_way < p_per_tenant)
        order by load.under_way, r.queued_at, r.id limit 1
        for update of r skip locked)
    returning offered.id, offered.tenant_id
$$;
alter function offer_summary(integer) owner to palimpsest_background;
revoke execute on function offer_summary(integer) from public;
grant execute on function offer_summary(integer) to palimpsest_service;

create function over_by_fixed(p_threshold integer, p_budget integer, OUT over_threshold bigint, OUT over_budget bigint)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select count(*) filter (where beside.tokens > coalesce((c.policy ->> 'compaction_threshold_tokens')::integer,
                                                           (t.policy ->> 'compaction_threshold_tokens')::integer, p_threshold)),
           count(*) filter (where limits.budget > 0 and beside.tokens > limits.budget)
    from public.conversations as c join public.tenants as t on t.id = c.tenant_id,
         lateral (select (c.fixed_tokens - c.carried_tokens) * c.token_ratio + c.unstored_tokens as tokens) as beside,
         lateral (select coalesce((c.policy ->> 'input_token_budget')::integer,
                                  (t.policy ->> 'input_token_budget')::integer, p_budget) as budget) as limits
$$;
alter function over_by_fixed(integer,integer) owner to palimpsest_background;
revoke execute on function over_by_fixed(integer,integer) from public;
grant execute on function over_by_fixed(integer,integer) to palimpsest_service;

create function overdue_checks_by_turns(p_seconds double precision, p_limit integer) returns TABLE(conversation_id uuid, tenant_id uuid, due_at timestamp with time zone, nth bigint)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select c.id, c.tenant_id, c.check_due_at,
           row_number() over (partition by c.tenant_id order by c.check_due_at, c.id) as nth
    from public.conversations as c
    where c.check_due_at < now() - make_interval(secs => p_seconds)
    order by nth, c.check_due_at limit p_limit
$$;
alter function overdue_checks_by_turns(double precision,integer) owner to palimpsest_background;
revoke execute on function overdue_checks_by_turns(double precision,integer) from public;
grant execute on function overdue_checks_by_turns(double precision,integer) to palimpsest_service;

create function rate_limits_since(p_since timestamp with time zone) returns TABLE(tenant_id uuid, per_key text, per_tenant text, changed_at timestamp with time zone)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select t.id, t.rate_limit_key, t.rate_limit_tenant, t.limits_changed_at
    from public.tenants as t where t.limits_changed_at > p_since
$$;
alter function rate_limits_since(timestamp with time zone) owner to palimpsest_background;
revoke execute on function rate_limits_since(timestamp with time zone) from public;
grant execute on function rate_limits_since(timestamp with time zone) to palimpsest_service;

create function read_beside_context(p_tenant uuid, p_conversation uuid, OUT id uuid, OUT system text, OUT tools text, OUT policy text, OUT model text, OUT shape text, OUT last_request integer, OUT in_loop boolean, OUT loop_has_thinking boolean, OUT fixed_tokens integer, OUT unstored_tokens integer, OUT carried_tokens integer, OUT turn_context_tokens integer)
language plpgsql stable as $$
begin
    -- Called by itself, so that the setting ends with this statement's transaction.
    perform set_config('app.tenant_id', p_tenant::text, true);
    select c.id, c.system::text, c.tools::text, c.policy::text, c.model, c.shape, c.last_request, c.in_loop,
           c.loop_has_thinking, c.fixed_tokens, c.unstored_tokens, c.carried_tokens, c.turn_context_tokens
    into id, system, tools, policy, model, shape, last_request, in_loop, loop_has_thinking, fixed_tokens, unstored_tokens,
         carried_tokens, turn_context_tokens
    from public.conversations as c where c.id = p_conversation and c.tenant_id = p_tenant;
end $$;

create function read_context(p_tenant uuid, p_conversation uuid, p_etag text, p_limits context_limits, p_policy text, p_inline_tags boolean, p_room integer, p_least_tokens integer, p_read_bytes integer, p_most_bytes integer, OUT etag text, OUT not_modified boolean, OUT plain boolean, OUT head text, OUT head_seqs integer[], OUT tail text, OUT head_version integer, OUT covers_through integer, OUT last_seq integer, OUT context_tokens integer, OUT measured_input_tokens integer, OUT result_cap integer, OUT strip_thinking_through integer, OUT pending_version integer, OUT policy text, OUT fixed_tokens integer, OUT factor double precision, OUT exchanges integer, OUT has_summary boolean, OUT gap boolean, OUT model text, OUT left_out text, OUT context_bytes bigint, OUT withheld boolean)
language sql stable as $$
    select r.etag, r.not_modified, r.plain, r.head, r.head_seqs, r.tail, r.head_version, r.covers_through, r.last_seq,
           r.context_tokens, r.measured_input_tokens, r.result_cap, r.strip_thinking_through, r.pending_version, r.policy,
           r.fixed_tokens, r.factor, r.exchanges, r.has_summary, r.gap, r.model, r.left_out, r.context_bytes, r.withheld
    from public.read_context_in_shape(p_tenant, p_conversation, p_etag, p_limits, p_policy, p_inline_tags, p_room,
                                      p_least_tokens, p_read_bytes, p_most_bytes, 'messages') as r
$$;

create function read_context_in_shape(p_tenant uuid, p_conversation uuid, p_etag text, p_limits context_limits, p_policy text, p_inline_tags boolean, p_room integer, p_least_tokens integer, p_read_bytes integer, p_most_bytes integer, p_shape text, OUT etag text, OUT not_modified boolean, OUT plain boolean, OUT head text, OUT head_seqs integer[], OUT tail text, OUT head_version integer, OUT covers_through integer, OUT last_seq integer, OUT context_tokens integer, OUT measured_input_tokens integer, OUT result_cap integer, OUT strip_thinking_through integer, OUT pending_version integer, OUT policy text, OUT fixed_tokens integer, OUT factor double precision, OUT exchanges integer, OUT has_summary boolean, OUT gap boolean, OUT model text, OUT left_out text, OUT context_bytes bigint, OUT withheld boolean, OUT sent text, OUT shapes text)
language plpgsql stable as $$
declare
    c record;
    v_beside integer;
    v_room integer;
    v_starts integer;
    v_request integer;
    v_answer integer;
    v_answered integer;
    v_follows integer[];
    v_shape text;
    v_served text;
    v_is_whole boolean;
begin
    -- Called by itself, so that the setting ends with this statement's transaction.
    perform set_config('app.tenant_id', p_tenant::text, true);
    select r.* into c from public.conversations as r where r.id = p_conversation and r.tenant_id = p_tenant;
    if not found then
        return;
    end if;
    result_cap := coalesce(c.result_cap, p_limits.result_cap);
    etag := c.revision || '-' || p_policy;
    not_modified := p_room is null and etag is not distinct from p_etag;
    if not_modified then
        return;
    end if;
    head_version := c.head_version;
    covers_through := c.covers_through;
    last_seq := c.next_seq - 1;
    context_bytes := c.context_bytes;
    withheld := c.context_bytes > p_most_bytes;
    if withheld then
        return;
    end if;
    strip_thinking_through := c.strip_thinking_through;
    pending_version := c.pending_version;
    policy := c.policy::text;
    model := c.model;
    exchanges := c.context_exchanges;
    left_out := c.left_out;
    factor := c.token_ratio;
    -- These messages hold no context blocks: nothing of what is carried over stands beside them.
    v_beside := c.fixed_tokens - c.carried_tokens;
    context_tokens := ceil((c.context_tokens + v_beside) * c.token_ratio)::integer + c.unstored_tokens;
    if c.measured_tokens is not null and c.measured_version = c.head_version then
        factor := greatest(factor, (c.measured_tokens - c.unstored_tokens)::double precision
                                   / greatest(1, c.context_tokens + c.fixed_tokens + c.turn_context_tokens));
        context_tokens := c.measured_tokens;
        measured_input_tokens := c.measured_input_tokens;
    end if;
    -- In the measure of estimates, as the rest of them is: multiplied by the factor it is what stands beside the messages.
    fixed_tokens := v_beside + round(c.unstored_tokens / factor)::integer;
    v_room := p_room;
    if v_room is null and (c.policy = '{}' or not c.policy ?| array['total_token_budget', 'reserved_output_tokens']) then
        v_room := p_limits.total_token_budget - p_limits.reserved_output_tokens - ceil(fixed_tokens * factor)::integer;
    elsif v_room is null then
        v_room := coalesce((c.policy ->> 'total_token_budget')::integer, p_limits.total_token_budget)
            - coalesce((c.policy ->> 'reserved_output_tokens')::integer, p_limits.reserved_output_tokens)
            - ceil(fixed_tokens * factor)::integer;
    end if;
    gap := false;
    v_shape := coalesce(c.shape, 'messages');
    v_served := coalesce(p_shape, v_shape);
    -- Who gives a room is going to fit other layers beside the history, and needs the messages one by one.
    -- So do inline results: only a parser knows where they are.
    plain := p_room is null and c.broken_through <= c.covers_through
        and not case when c.policy ? 'inline_tool_tags' then jsonb_array_length(c.policy -> 'inline_tool_tags') > 0
                     else p_inline_tags end
        -- A snapshot is in the Messages API's shape, with what another model thought.
        and case when v_served = 'messages' then v_shape = 'messages' and not c.mixed_shapes
                                                 and (c.head_version = 0 or c.other_model_through = -1)
                 else c.head_version = 0 end;
    if c.context_tokens * factor > v_room or c.context_bytes > p_read_bytes then
        plain := false;
        select t.starts, t.request, t.answer, t.answered into v_starts, v_request, v_answer, v_answered
        from public.tail_window(p_conversation, c.covers_through, c.counted_cap, v_room, factor, p_least_tokens) as t;
        if c.context_bytes > p_read_bytes then
            v_starts := greatest(v_starts, public.tail_within(p_conversation, c.covers_through, (
                select max(m.seq) from public.messages as m
                where m.conversation_id = p_conversation and m.is_request and m.seq < v_answered
                  and m.superseded_at is null), p_read_bytes));
            -- What is read belongs to another request now.
            select coalesce(max(m.seq), v_request) into v_request from public.messages as m
            where m.conversation_id = p_conversation and m.is_request and m.seq > c.covers_through
              and m.seq <= least(v_starts, v_answered - 1) and m.superseded_at is null;
        end if;
        gap := v_starts > c.covers_through + 1;
    end if;
    if c.head_version > 0 then
        select case when s.follows = '{}' then coalesce(s.messages::text, s.part || ']') end, s.follows, s.seqs,
               s.summary is not null or s.pins <> '[]'
        into head, v_follows, head_seqs, has_summary
        from public.snapshot_parts as s where s.conversation_id = p_conversation and s.version = c.head_version;
        if v_follows <> '{}' then
            -- Sorted before they are joined: an aggregate that sorts reads the texts twice. The range keeps the index from
            -- being walked through all versions for that order.
            select string_agg(case when p.version = c.head_version then p.part || ']' else p.part end, '') into head
            from (select s.version, s.part from public.snapshot_parts as s
                  where s.conversation_id = p_conversation and s.version between v_follows[1] and c.head_version
                      and s.version = any (v_follows || c.head_version)
                  order by s.version) as p;
        end if;
    end if;
    if plain and v_served <> 'messages' then
        -- As it came, if all of it came so: then the messages' own texts are not read. Refused are reasoning alone by Chat
        -- Completions, reasoning that nothing follows yet by Responses.
        select string_agg(public.as_sent(m.role, m.content, m.sent), ',' order by m.seq),
               coalesce(bool_and(coalesce(m.shape = v_served, false)
                                 and not (m.has_thinking and (v_served = 'chat' or m.seq = c.next_seq - 1)
                                          and public.is_reasoning_alone(p_conversation, m.seq))
                                 and (m.result_chars is null or read_context_in_shape.result_cap >= all (m.result_chars))
                                 and (not m.has_thinking or m.seq > c.strip_thinking_through)), true)
        into sent, plain
        from public.messages as m
        where m.conversation_id = p_conversation and m.superseded_at is null;
    elsif plain then
        select string_agg('{"role":"' || m.role || '","content":' || m.content::text || '}', ',' order by m.seq),
               coalesce(bool_and((m.result_chars is null or read_context_in_shape.result_cap >= all (m.result_chars))
                                 and (not m.has_thinking or m.seq > c.strip_thinking_through)), true)
        into tail, plain
        from public.messages as m
        where m.conversation_id = p_conversation and m.seq > c.covers_through and m.superseded_at is null;
    end if;
    if not plain then
        select '[' || string_agg('[' || m.seq || ',"' || m.role || '",' || m.content::text || ']', ',' order by m.seq)
               || ']'
        into tail
        from public.messages as m
        where m.conversation_id = p_conversation and m.seq > c.covers_through and m.superseded_at is null
          and (not gap or m.seq >= v_starts or m.seq = v_request
               or (m.seq >= v_answer and (m.seq <= v_answered or m.result_chars is not null)));
    end if;
    if v_served = 'messages' then
        v_is_whole := v_shape = 'messages' and not c.mixed_shapes;
        if v_is_whole and c.other_model_through = -1 and c.rules is null then
            return;
        end if;
    elsif plain then
        v_is_whole := true;
    else
        select s.sent, s.is_whole into sent, v_is_whole
        from public.sent_of_context(p_conversation, v_served, covers_through, head_seqs) as s;
    end if;
    shapes := json_build_object('shape', v_shape, 'is_whole', v_is_whole, 'other_model_through', c.other_model_through,
                                'rules', coalesce(c.rules, '[]'));
end $$;

create function recount_carried(p_conversation uuid) returns void
language sql as $$
    update public.conversations as c
    set carried_tokens = carried.tokens, fixed_tokens = c.fixed_tokens - c.carried_tokens + carried.tokens,
        turn_context_tokens = recent.tokens
    from (select coalesce(sum(b.outline_tokens), 0)::integer as tokens from public.context_blocks as b
          where b.conversation_id = p_conversation and b.carried_until is null and b.superseded_at is null) as carried,
         (select coalesce(sum(b.tokens - case when b.carried_until is null then b.outline_tokens else 0 end), 0)::integer
                 as tokens
          from public.context_blocks as b
          where b.conversation_id = p_conversation and b.superseded_at is null
            and b.seq >= (select o.last_request from public.conversations as o where o.id = p_conversation)) as recent
    where c.id = p_conversation
$$;

create function recount_end(p_conversation uuid) returns void
language sql set enable_bitmapscan = 'off' set enable_seqscan = 'off' as $$
    with live as not materialized (
        select seq, role, content, is_request, has_thinking, result_chars from public.messages
        where conversation_id = p_conversation and superseded_at is null
    ), newest as (
        select role, content, is_request from live order by seq desc limit 1
    ), calls as (
        select coalesce(array_agg(block ->> 'id' order by block ->> 'id' collate "C"), '{}') as ids
        from newest, lateral json_array_elements(
            case when newest.role = 'assistant' and json_typeof(newest.content) = 'array'
                 then newest.content else '[]'::json end) as block
        where block ->> 'type' = 'tool_use'
    )
    update public.conversations as c
    set open_calls = calls.ids,
        in_loop = cardinality(calls.ids) > 0
            or exists (select from newest where newest.role = 'user' and not newest.is_request),
        loop_has_thinking = exists (
            select from live where has_thinking
                and seq > coalesce((select max(seq) from live where is_request), -1)),
        last_request = coalesce((select max(seq) from live where is_request), -1),
        newest_result = coalesce((select max(seq) from live where result_chars is not null), -1),
        results_cut_through = -1,
        tool_results_hold = 0,
        summary_hold = 0,
        trim_hold = 0,
        measured_tokens = null,
        measured_input_tokens = null,
        measured_version = null
    from calls
    where c.id = p_conversation
$$;

create function recount_results(p_conversation uuid, p_cap integer) returns void
language sql as $$
    update public.conversations set counted_cap = p_cap, revision = public.next_revision(revision)
    where id = p_conversation and counted_cap is distinct from p_cap;
    update public.conversations as c
    set context_tokens = shown.tokens,
        measured_tokens = null,
        measured_input_tokens = null,
        measured_version = null,
        head_moved_at = c.next_seq,
        strip_thinking_through = c.next_seq - 1
    from (select (coalesce((select s.tokens from public.snapshot_parts as s
                            where s.conversation_id = r.id and s.version = r.head_version), 0)
                  + coalesce((select sum(public.shown_tokens(m.tokens, m.view_tokens, m.result_chars, p_cap))
                              from public.messages as m
                              where m.conversation_id = r.id and m.seq > r.covers_through
                                and m.superseded_at is null), 0))::integer as tokens
          from public.conversations as r where r.id = p_conversation) as shown
    where c.id = p_conversation and c.context_tokens <> shown.tokens
$$;

create function rules_in_force(p_conversation uuid) returns jsonb
language sql stable as $$
    select jsonb_agg(jsonb_build_array(replace(p.id::text, '-', ''), p.seq, p.text, p.source) order by p.seq, p.id)
    from public.pins as p
        join public.messages as m on m.conversation_id = p.conversation_id and m.seq = p.seq and m.superseded_at is null
    where p.conversation_id = p_conversation and p.removed_at is null
$$;

create function sent_of_context(p_conversation uuid, p_shape text, p_covers_through integer, p_head_seqs integer[], OUT sent text, OUT is_whole boolean)
language sql stable as $$
    select '[' || string_agg('[' || m.seq || ',' || public.as_sent(m.role, m.content, m.sent) || ']', ',' order by m.seq)
                      filter (where m.shape = p_shape) || ']',
           coalesce(bool_and(coalesce(m.shape = p_shape, false)) filter (where m.seq > p_covers_through), true)
    from public.messages as m
    where m.conversation_id = p_conversation and m.superseded_at is null
      and (m.seq > p_covers_through or m.seq = any (p_head_seqs))
$$;

create function shown_tokens(p_tokens integer, p_view_tokens integer, p_result_chars integer[], p_cap integer) returns integer
language sql stable as $$
    select case when p_cap is null or p_result_chars is null then p_view_tokens
                else p_tokens - public.tokens_over_cap(array[p_result_chars::text], p_cap) end
$$;

create function snapshot_chain(p_conversation uuid, p_version integer) returns TABLE(version integer, covers_through integer)
language sql stable as $$
    with recursive chain as (
        select s.version, s.parent_version, s.covers_through from public.snapshot_parts as s
            where s.conversation_id = p_conversation and s.version = p_version
        union all
        select s.version, s.parent_version, s.covers_through from chain
            join public.snapshot_parts as s on s.conversation_id = p_conversation and s.version = chain.parent_version
    )
    select chain.version, chain.covers_through from chain order by chain.version desc
$$;

create function stands_before(p_conversation uuid, p_version integer, p_from integer) returns boolean
language sql stable as $$
    select exists (
        select from public.snapshot_parts as s
        where s.conversation_id = p_conversation and s.version = p_version and s.covers_through < p_from
            and not exists (select from jsonb_array_elements(s.pins) as pin where (pin ->> 1)::integer >= p_from))
$$;

create function store_snapshot() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    v_longest constant integer := 16;
    v_part text := left(rtrim(new.messages::text, E' \t\n\r'), -1);
    v_before text;
    v_follows integer[];
begin
    if json_typeof(new.messages) <> 'array' then
        raise exception 'the messages of a snapshot are an array' using errcode = 'check_violation';
    end if;
    select left(s.messages::text, -1), p.follows || p.version into v_before, v_follows
    from public.snapshot_parts as p
        join public.snapshots as s on s.conversation_id = p.conversation_id and s.version = p.version
    where p.conversation_id = new.conversation_id and p.version = new.parent_version and p.part is not null
        and cardinality(p.follows) < v_longest;
    if starts_with(v_part, v_before || ',') then
        v_part := substr(v_part, length(v_before) + 1);
    else
        v_follows := '{}';
    end if;
    insert into public.snapshot_parts (
        tenant_id, conversation_id, version, parent_version, run_id, step, covers_through, part, follows, seqs, coverage,
        summary, summarizer, tokens, message_count, bytes, exchanges, prefix_hash, created_at, pins, claims, media)
    values (
        new.tenant_id, new.conversation_id, new.version, new.parent_version, new.run_id, new.step, new.covers_through, v_part,
        v_follows, new.seqs, new.coverage, new.summary, new.summarizer, new.tokens, new.message_count, new.bytes,
        new.exchanges, new.prefix_hash, new.created_at, new.pins, new.claims, new.media);
    return new;
end $$;

create function stranded_runs_by_turns(p_seconds double precision, p_limit integer, p_per_tenant integer) returns TABLE(run_id uuid, tenant_id uuid, queue text, attempts integer, expired boolean)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    with active as (
        select r.id, r.tenant_id, r.queue, r.state, r.attempts, r.queued_at,
               r.state = 'running' and r.lease_expires_at < now() as expired
        from public.runs as r where r.state in ('queued', 'running')
    ), under_way as (
        select a.tenant_id, count(*) as runs from active as a
        where a.state = 'running' and a.queue = 'summaries' and not a.expired group by a.tenant_id
    ), left_alone as (
        select a.*, row_number() over (partition by a.tenant_id, a.queue, a.state order by a.queued_at, a.id) as nth
        from active as a
        where a.expired or (a.state = 'queued' and a.queued_at < now() - make_interval(secs => p_seconds))
    )
    select l.id, l.tenant_id, l.queue, l.attempts, l.expired
    from left_alone as l left join under_way as u on u.tenant_id = l.tenant_id
    where p_per_tenant = 0 or l.expired or l.queue <> 'summaries' or l.nth <= p_per_tenant - coalesce(u.runs, 0)
    order by l.nth, l.queued_at limit p_limit
$$;
alter function stranded_runs_by_turns(double precision,integer,integer) owner to palimpsest_background;
revoke execute on function stranded_runs_by_turns(double precision,integer,integer) from public;
grant execute on function stranded_runs_by_turns(double precision,integer,integer) to palimpsest_service;

create function supersede(p_conversation uuid, p_from integer) returns void
language plpgsql as $$
declare
    c record;
    v_version integer;
begin
    update public.messages set superseded_at = now()
        where conversation_id = p_conversation and seq >= p_from and superseded_at is null;
    update public.context_blocks set superseded_at = now()
        where conversation_id = p_conversation and seq >= p_from and superseded_at is null;
    update public.context_blocks set carried_until = null
        where conversation_id = p_conversation and carried_until >= p_from;
    update public.conversations set edits = edits + 1 where id = p_conversation
        returning head_version, next_seq, strip_thinking_through, held_by_restore, tool_results_hold, summary_hold, trim_hold,
            pending_version, edits, context_tokens, head_moved_at
        into c;
    v_version := public.newest_version_below(p_conversation, p_from);
    perform public.move_head(p_conversation, v_version);
    perform public.recount_end(p_conversation);
    perform public.recount_carried(p_conversation);
    if v_version = c.head_version then
        -- Nothing before the messages that are left has changed: what was signed stays valid, what was restored restored.
        update public.conversations
            set strip_thinking_through = c.strip_thinking_through,
                -- Whoever read the context before it moved may not know of it yet.
                head_moved_at = case when c.head_moved_at = c.next_seq then c.next_seq else least(head_moved_at, p_from) end,
                pending_version = case when public.stands_before(id, c.pending_version, p_from) then c.pending_version end
            where id = p_conversation;
        update public.conversations
            set held_by_restore = c.held_by_restore, tool_results_hold = c.tool_results_hold, summary_hold = c.summary_hold,
                trim_hold = c.trim_hold
            where id = p_conversation and (c.held_by_restore or context_tokens >= 0.9 * c.context_tokens);
        update public.waiting_snapshots as w set edits = c.edits
            where w.conversation_id = p_conversation and w.edits = c.edits - 1
                and public.stands_before(w.conversation_id, w.version, p_from);
    end if;
end $$;

create function tail_window(p_conversation uuid, p_covers integer, p_cap integer, p_room double precision, p_factor double precision, p_least_tokens integer, OUT starts integer, OUT request integer, OUT answer integer, OUT answered integer)
language plpgsql stable as $$
declare
    v_shown double precision;
    v_tokens double precision := 0;
    v_least double precision := 0;
    v_before integer;
    m record;
begin
    select seq into answered from public.messages
        where conversation_id = p_conversation and role = 'assistant' and superseded_at is null
        order by seq desc limit 1;
    select seq into request from public.messages
        where conversation_id = p_conversation and is_request and seq < answered and superseded_at is null
        order by seq desc limit 1;
    select coalesce(max(seq), -1) + 1 into answer from public.messages
        where conversation_id = p_conversation and role <> 'assistant' and seq < answered and superseded_at is null;
    for m in select seq, role, is_request, tokens, view_tokens, result_chars,
                    lead(role) over (order by seq desc) as before
             from public.messages
             where conversation_id = p_conversation and seq > p_covers and superseded_at is null
             order by seq desc loop
        v_shown := p_factor * case
            when p_cap is null or m.result_chars is null then m.view_tokens
            else public.shown_tokens(m.tokens, m.view_tokens, m.result_chars, p_cap) end;
        v_tokens := v_tokens + v_shown;
        if m.seq > answered or answered is null then
            v_least := v_least + least(v_shown, p_least_tokens * p_factor);
            exit when v_least > p_room and starts is not null;
            starts := m.seq;
        elsif m.is_request or (m.role = 'assistant' and m.before is distinct from 'assistant') then
            starts := m.seq;
            exit when v_tokens > p_room;
        end if;
    end loop;
    -- All of it was gone through, and fits: what the head shows of its first exchange may, too.
    if starts is null or v_tokens <= p_room then
        starts := p_covers + 1;
    end if;
    -- What a server tool's code called, and its result, belong to the call of that tool, rounds before.
    loop
        select max(earlier.seq) into v_before
        from public.messages as first join public.messages as earlier using (conversation_id)
        where first.conversation_id = p_conversation and first.seq = starts and first.role = 'assistant'
          and first.content::text ~ '"caller"\s*:\s*\{[^{}]*"tool_id"|"[a-z_]+_tool_result"'
          and first.content::text !~ '"(server|mcp)_tool_use"'
          and earlier.seq > greatest(p_covers, case when starts > request then request end) and earlier.seq < starts
          and earlier.role = 'assistant' and earlier.superseded_at is null;
        exit when v_before is null;
        select coalesce(max(seq), p_covers) + 1 into starts from public.messages
            where conversation_id = p_conversation and seq > p_covers and seq < v_before and role <> 'assistant'
              and superseded_at is null;
    end loop;
    if starts < request then
        select coalesce(max(seq), p_covers) into request from public.messages
            where conversation_id = p_conversation and is_request and seq > p_covers and seq <= starts
              and superseded_at is null;
    end if;
end $$;

create function tail_within(p_conversation uuid, p_covers integer, p_request integer, p_bytes integer) returns integer
language sql stable as $$
    with newest as (
        select m.seq, m.role, m.is_request, sum(m.bytes) over (order by m.seq desc) as bytes,
               lag(m.role) over (order by m.seq) as before
        from public.messages as m
        where m.conversation_id = p_conversation and m.seq > p_covers and m.superseded_at is null)
    select case when max(bytes) <= p_bytes then p_covers + 1 else coalesce(min(seq) filter (where bytes <= p_bytes
                                     and (is_request or (role = 'assistant' and seq > p_request
                                                         and before is distinct from 'assistant'))),
                    max(seq), p_covers + 1) end
    from newest
$$;

create function take_console_ticket(p_token_hash bytea) returns TABLE(tenant_id uuid, key_id uuid)
language sql security definer set search_path = pg_catalog, public, pg_temp as $$
    update public.console_sessions as s set ended_at = now()
    from public.api_keys as k
    where s.token_hash = p_token_hash and s.is_ticket and s.ended_at is null and s.expires_at > now()
        and k.id = s.key_id and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
    returning s.tenant_id, s.key_id
$$;
alter function take_console_ticket(bytea) owner to palimpsest_background;
revoke execute on function take_console_ticket(bytea) from public;
grant execute on function take_console_ticket(bytea) to palimpsest_service;

create function tenant_of_token(p_id uuid, p_name text) returns TABLE(tenant_id uuid, policy text)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select t.id, t.policy::pg_catalog.text from public.tenants as t where t.id = p_id or (p_id is null and t.name = p_name)
$$;
alter function tenant_of_token(uuid,text) owner to palimpsest_background;
revoke execute on function tenant_of_token(uuid,text) from public;
grant execute on function tenant_of_token(uuid,text) to palimpsest_service;

create function tokens_over_cap(p_result_chars text[], p_cap integer) returns integer
language sql immutable as $$
    select coalesce(sum(hidden.chars / 4), 0)::integer
    from (select sum(greatest(0, each_result.chars - p_cap)) as chars
          from unnest(p_result_chars) with ordinality as message (list, place),
               unnest(message.list::integer[]) as each_result (chars)
          group by message.place) as hidden
$$;

create function usages_to_reckon(p_limit integer) returns SETOF uuid
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select distinct due.tenant_id from (
        select u.tenant_id from public.turn_usages as u where u.reckoned_at is null order by u.answered_at limit p_limit
    ) as due
$$;
alter function usages_to_reckon(integer) owner to palimpsest_background;
revoke execute on function usages_to_reckon(integer) from public;
grant execute on function usages_to_reckon(integer) to palimpsest_service;

create function waiting_work() returns TABLE(kind text, waiting bigint, oldest_seconds double precision)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    with waits (kind, since) as (
        select r.queue, r.queued_at from public.runs as r where r.state = 'queued'
        union all
        select 'budget', w.created_at from public.waiting_summaries as w where w.done_at is null
        union all
        select 'overdue', w.not_before from public.waiting_summaries as w
            where w.done_at is null and w.not_before <= now()
        union all
        select 'webhooks', d.next_attempt_at from public.webhook_deliveries as d
            where d.state = 'pending' and d.next_attempt_at <= now()
        union all
        select 'batches', b.next_attempt_at from public.model_batches as b
            where b.state in ('wanted', 'sending', 'submitted', 'canceling', 'ended')
                and b.next_attempt_at <= now()
    )
    select k.kind, count(w.kind), greatest(0, coalesce(extract(epoch from now() - min(w.since)), 0))::pg_catalog.float8
    from unnest(array['checks', 'summaries', 'budget', 'overdue', 'webhooks', 'batches']) as k (kind)
        left join waits as w on w.kind = k.kind
    group by k.kind
$$;
alter function waiting_work() owner to palimpsest_background;
revoke execute on function waiting_work() from public;
grant execute on function waiting_work() to palimpsest_service;

create function want_batches(p_ids uuid[], p_conversations uuid[]) returns TABLE(batch_id uuid, tenant_id uuid)
language sql security definer set search_path = pg_catalog, public, pg_temp as $$
    insert into public.model_batches as made (id, tenant_id, conversation_id, request_id)
    select wanted.id, c.tenant_id, c.id, c.check_request_id
    from unnest(p_ids, p_conversations) as wanted (id, conversation_id)
        join public.conversations as c on c.id = wanted.conversation_id
    where not exists (
        select from public.waiting_snapshots as w where w.conversation_id = c.id and w.version is not null)
    on conflict do nothing
    returning made.id, made.tenant_id
$$;
alter function want_batches(uuid[],uuid[]) owner to palimpsest_background;
revoke execute on function want_batches(uuid[],uuid[]) from public;
grant execute on function want_batches(uuid[],uuid[]) to palimpsest_service;

create function watch_pauses(p_ids uuid[], p_lifetimes integer[]) returns SETOF uuid
language sql security definer set search_path = pg_catalog, public, pg_temp as $$
    with quiet as (
        select c.id, c.tenant_id, c.head_version, c.edits, asked.lifetime, newest.created_at
            + make_interval(secs => asked.lifetime) as cold_at
        from unnest(p_ids, p_lifetimes) as asked (id, lifetime)
        join public.conversations as c on c.id = asked.id
        left join public.waiting_snapshots as w on w.conversation_id = c.id
        cross join lateral (
            select m.created_at from public.messages as m where m.conversation_id = c.id order by m.seq desc limit 1
        ) as newest
        left join lateral (
            select r.trigger, r.created_at from public.runs as r where r.conversation_id = c.id and r.block_id is null
            order by r.id desc limit 1
        ) as latest on true
        where c.erased_at is null and not c.held_by_restore and c.pending_version is null and w.version is null
            and (latest.trigger is distinct from 'pause' or latest.created_at < newest.created_at)
            and (w.cold_at is null or w.cold_at = 'infinity' or w.cold_at < now())
        order by c.id
    ), watched as (
        insert into public.waiting_snapshots (conversation_id, tenant_id, head_version, edits, pins, lifetime, cold_at)
        select q.id, q.tenant_id, q.head_version, q.edits, '{}', q.lifetime, q.cold_at from quiet as q where q.cold_at >= now()
        on conflict (conversation_id) do update set lifetime = excluded.lifetime, cold_at = excluded.cold_at
            where waiting_snapshots.version is null
    )
    select q.id from quiet as q where q.cold_at < now()
$$;
alter function watch_pauses(uuid[],integer[]) owner to palimpsest_background;
revoke execute on function watch_pauses(uuid[],integer[]) from public;
grant execute on function watch_pauses(uuid[],integer[]) to palimpsest_service;

create function without_words(p_policy jsonb) returns jsonb
language sql immutable as $$
    select coalesce(jsonb_object_agg(named.key, named.value), '{}')
    from jsonb_each(p_policy) as named where jsonb_typeof(named.value) in ('number', 'boolean')
$$;

create function write_run_kind() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    new.kind := case
        when new.trigger = 'context_block' then 'context_block'
        when new.trigger = 'batch' then 'batch'
        when new.base_version is not null then 'recovery'
        when new.trigger = 'manual' then 'manual'
        when new.trigger = 'check' then 'ladder'
        else 'request'
    end;
    return new;
end $$;

create function write_sent_message() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    update public.messages as m
    set shape = new.shape,
        sent = case when new.sent::text <> public.as_sent(m.role, m.content, null) then new.sent end
    where m.conversation_id = new.conversation_id and m.seq = new.seq and m.tenant_id = new.tenant_id;
    return new;
end $$;
