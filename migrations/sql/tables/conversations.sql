-- squawk-ignore-file require-concurrent-index-creation -- the tables are new and empty
-- Every append updates one row of this table in place. The wide columns go out of line early (toast_tuple_target) and
-- pages keep room (fillfactor), so that the update stays small and, where no index changes, heap-only.
create table conversations (
    id uuid constraint pk_conversations primary key,
    tenant_id uuid not null constraint fk_conversations_tenant_id_tenants references tenants (id),
    external_id text,
    user_ref text,
    model text,
    system json,
    tools json,
    policy jsonb not null default '{}',
    metadata jsonb not null default '{}',
    created_at timestamptz not null default now(),

    next_seq integer not null default 0,
    turn_count integer not null default 0,
    revision bigint not null default 0,
    edits integer not null default 0,

    head_version integer not null default 0,
    last_version integer not null default 0,
    pending_version integer,
    covers_through integer not null default -1,
    head_moved_at integer not null default -1,

    context_tokens integer not null default 0,
    context_messages integer not null default 0,
    context_bytes bigint not null default 0,
    context_exchanges integer not null default 0,
    last_request integer not null default -1,
    fixed_tokens integer not null default 0,
    -- The median of what the API counted over what was estimated. It starts with two ones, so that no single odd count
    -- moves it.
    token_ratio real not null default 1,
    ratio_samples real[] not null default '{1,1}',
    measured_tokens integer,
    measured_input_tokens integer,
    measured_version integer,

    open_calls text[] not null default '{}',
    in_loop boolean not null default false,
    loop_has_thinking boolean not null default false,
    broken_through integer not null default -1,
    strip_thinking_through integer not null default -1,

    check_due_at timestamptz,
    check_request_id uuid,
    newest_result integer not null default -1,
    results_cut_through integer not null default -1,
    tool_results_hold integer not null default 0,
    summary_hold integer not null default 0,
    trim_hold integer not null default 0,
    overflows integer not null default 0,

    result_cap integer generated always as ((policy ->> 'max_tool_result_chars')::integer) stored,

    carried_tokens integer not null default 0,
    turn_context_tokens integer not null default 0,
    held_by_restore boolean not null default false,
    -- The cap on tool results that context_tokens were counted with.
    counted_cap integer,
    -- Set when the conversation was erased: its words are gone, and row-level security hides the row.
    erased_at timestamptz,
    -- Seqs of messages that were dropped without a summary, as "3-17, 20"; null = none. Every context names them. It changes
    -- with the head alone.
    left_out text,
    -- unstored_tokens: tokens of a system prompt and tools that the client sends without storing them, learned from the API's
    -- counts, and in its tokens; fixed_tokens are estimated from those that are stored. last_count: estimates and counts of the
    -- last calls that were learned from. measured_seq: the next seq after the turn with the last count.
    unstored_tokens integer not null default 0,
    last_count integer[],
    measured_seq integer not null default 0,
    -- The restored head was over the budget already, so it is held although not all of it is served.
    restored_over_budget boolean not null default false,
    -- The shape of the API whose messages the conversation began with; null = the Messages API's.
    shape text constraint ck_conversations_shape check (shape in ('chat', 'responses')),
    mixed_shapes boolean not null default false,
    -- Messages up to this seq were answered by another model than the present one; reasoning among them is not served.
    other_model_through integer not null default -1,
    -- The rules in force as [id, seq, text, source] each, so that a read of the context gets them with the row; null = none.
    rules jsonb,
    -- Seqs of the newest message with media, and of the newest one that a run has looked at for media. A check asks for a run
    -- only if newer media have come.
    newest_media integer not null default -1,
    media_checked_through integer not null default -1,
    -- Tokens of output that the newest request asks for at most; null = no request has said.
    requested_output integer
) with (fillfactor = 70, toast_tuple_target = 512, autovacuum_vacuum_scale_factor = 0.02);
create unique index uq_conversations_external_id on conversations (tenant_id, external_id)
    where external_id is not null;
create index ix_conversations_tenant_id_id on conversations (tenant_id, id);
create index ix_conversations_user_ref on conversations (tenant_id, user_ref, id) where user_ref is not null;
create index ix_conversations_check_due_at on conversations (check_due_at) where check_due_at is not null;
-- Conversations with a retention of their own: few, and no append changes one of its columns.
create index ix_conversations_own_retention on conversations (tenant_id, id) where policy ? 'message_retention_days';
alter table conversations alter column external_id set statistics 0, alter column user_ref set statistics 0,
    alter column model set statistics 0, alter column policy set statistics 0, alter column metadata set statistics 0,
    alter column open_calls set statistics 0, alter column left_out set statistics 0, alter column rules set statistics 0;
alter table conversations enable row level security, force row level security;
create policy tenant on conversations
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid and erased_at is null)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid and erased_at is null);
create policy auditor on conversations for select to palimpsest_auditor using (true);
create policy background on conversations to palimpsest_background using (true) with check (true);
grant select, insert, update on conversations to palimpsest_service;
grant select (id, tenant_id, model, policy, revision, edits, head_version, pending_version, covers_through, context_tokens,
    context_bytes, last_request, fixed_tokens, token_ratio, measured_tokens, measured_version, check_due_at,
    check_request_id, newest_result, results_cut_through, tool_results_hold, summary_hold, trim_hold, carried_tokens,
    held_by_restore, counted_cap, erased_at, unstored_tokens, measured_seq, newest_media, media_checked_through,
    requested_output), update
    (external_id, user_ref, model, system, tools, policy, metadata, revision, head_version, pending_version, covers_through,
    open_calls, check_due_at, check_request_id, erased_at) on conversations to palimpsest_background;
grant select (id, tenant_id, external_id, user_ref, created_at, turn_count, head_version, context_tokens, erased_at) on
    conversations to palimpsest_auditor;
