-- Who may do what. Nobody logs in as one of the three roles. Services take on palimpsest_service: it owns nothing, and
-- row-level security is forced on it. palimpsest_background owns the few functions that have to look across tenants, and sees,
-- column by column, nothing that anybody said. palimpsest_auditor reads the views of 0100_views.sql, and of the tables no more
-- than those need.
do $$
declare
    v_role text;
begin
    foreach v_role in array array['palimpsest_service', 'palimpsest_background', 'palimpsest_auditor'] loop
        -- Roles belong to the whole server: an administrator, or another database's migration, may have made them.
        if not exists (select from pg_roles where rolname = v_role) then
            begin
                execute format('create role %I nologin nosuperuser nobypassrls', v_role);
            exception
                when duplicate_object or unique_violation then
                    null;
                when insufficient_privilege then
                    raise exception 'the role % is missing, and this login may not create it', v_role
                        using errcode = 'insufficient_privilege',
                              hint = format('As an administrator: create role %I nologin nosuperuser nobypassrls', v_role);
            end;
        end if;
        -- Whoever may act as the role already (a superuser, or somebody it was granted to) cannot always grant it. From
        -- Postgres 16 on who has made it is a member of it, and may grant it, but not act as it.
        if v_role <> 'palimpsest_auditor' and not pg_has_role(
            v_role, case when current_setting('server_version_num')::integer < 160000 then 'member' else 'set' end) then
            execute format('grant %I to current_user', v_role);
        end if;
    end loop;
end $$;
grant usage on schema public to palimpsest_service, palimpsest_background, palimpsest_auditor;

-- Row-level security, also for the owner: a transaction sees the tenant that it names.
do $$
declare
    v_table text;
begin
    foreach v_table in array array[
        'api_keys', 'assemblies', 'console_sessions', 'context_blocks', 'erasures', 'idempotency_keys', 'messages',
        'model_batches', 'model_usage', 'operator_actions', 'pins', 'run_steps', 'runs', 'snapshot_parts',
        'waiting_summaries', 'webhook_deliveries', 'webhooks', 'conversations', 'tenants'
    ] loop
        execute format('alter table %I enable row level security', v_table);
        execute format('alter table %I force row level security', v_table);
        -- nullif: after a transaction that set it, the setting reads as an empty string, not as null.
        continue when v_table in ('conversations', 'tenants');
        execute format($policy$
            create policy tenant on %I
                using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
                with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
        $policy$, v_table);
    end loop;
end $$;
create policy tenant on tenants
    using (id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy tenant on conversations
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid and erased_at is null)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid and erased_at is null);

-- The services.
grant select on alembic_version to palimpsest_service; -- readiness compares it with what the code was written for
grant select, insert on tenants, api_keys, conversations, messages, idempotency_keys, context_blocks, assemblies, pins, runs,
    run_steps, snapshot_parts, snapshots, webhooks, webhook_deliveries, model_batches, waiting_summaries, console_sessions,
    operator_actions, processes
    to palimpsest_service;
grant select on erasures, model_usage to palimpsest_service;
grant update on conversations, runs to palimpsest_service;
grant update (name, policy) on tenants to palimpsest_service;
grant update (revoked_at, expires_at, replaced_by) on api_keys to palimpsest_service;
grant update (superseded_at) on messages to palimpsest_service;
grant update (summary, summarized_at, carried_until, superseded_at) on context_blocks to palimpsest_service;
grant update (removed_at) on pins to palimpsest_service;
grant update (call, snapshot_version, system_tokens, prior_context_tokens, turn_context_tokens, history_tokens,
              user_message_tokens, reserved_output_tokens, total_token_budget, exchanges_total, exchanges_kept,
              rounds_dropped, responses_truncated, blocks_shortened, warnings, assembled_at)
    on assemblies to palimpsest_service;
grant update (removed_at) on webhooks to palimpsest_service;
grant update (state, attempts, status, error, next_attempt_at, finished_at) on webhook_deliveries to palimpsest_service;
grant update (state, base_version, first_seq, last_seq, zone_messages, part_ends, fingerprint, canary, model,
              prompt_version, answer_tokens, provider_batch_id, answers, model_calls, model_input_tokens,
              model_output_tokens, cost_usd, attempts, failures, next_attempt_at, run_id, reason, error, sent_at,
              expires_at, finished_at, reserved_tokens, reserved_cost_usd)
    on model_batches to palimpsest_service;
grant update (not_before, done_at) on waiting_summaries to palimpsest_service;
grant update (ended_at) on console_sessions to palimpsest_service;
grant update (seen_at, busy, oldest_task_at) on processes to palimpsest_service;
grant delete on processes to palimpsest_service;

-- Across tenants, for checks, the sweeper and the metrics.
create policy background on tenants for select to palimpsest_background using (true);
grant select (id, name, policy, rate_limit_key, rate_limit_tenant, limits_changed_at) on tenants to palimpsest_background;
create policy background on api_keys for select to palimpsest_background using (true);
create policy background_notes on api_keys for update to palimpsest_background using (true) with check (true);
grant select (id, tenant_id, secret_hash, scopes, expires_at, revoked_at, last_used_at), update (last_used_at)
    on api_keys to palimpsest_background;
create policy background on conversations to palimpsest_background using (true) with check (true);
grant select (id, tenant_id, model, policy, revision, head_version, pending_version, context_tokens, context_bytes,
              last_request, fixed_tokens, token_ratio, measured_tokens, measured_version, check_due_at, check_request_id,
              newest_result, results_cut_through, tool_results_hold, summary_hold, trim_hold, carried_tokens, counted_cap,
              erased_at, unstored_tokens, measured_seq),
      update (check_due_at)
    on conversations to palimpsest_background;
create policy background on runs for select to palimpsest_background using (true);
create policy background_offers on runs for update to palimpsest_background using (true) with check (true);
grant select (id, tenant_id, conversation_id, state, queue, reason, policy, attempts, lease_expires_at, queued_at,
              finished_at, block_id, reserved_tokens, reserved_cost_usd),
      update (queued_at, reserved_tokens, reserved_cost_usd)
    on runs to palimpsest_background;
create policy background on webhook_deliveries for select to palimpsest_background using (true);
grant select (id, tenant_id, run_id, state, next_attempt_at, finished_at) on webhook_deliveries to palimpsest_background;
create policy background on model_batches to palimpsest_background using (true) with check (true);
grant select (id, tenant_id, conversation_id, state, provider_batch_id, next_attempt_at, finished_at), insert
    on model_batches to palimpsest_background;
create policy background on model_usage to palimpsest_background using (true) with check (true);
grant select, insert, update on model_usage to palimpsest_background;
create policy background on waiting_summaries for select to palimpsest_background using (true);
grant select on waiting_summaries to palimpsest_background;
create policy background on console_sessions to palimpsest_background using (true) with check (true);
grant select, update (ended_at) on console_sessions to palimpsest_background;

-- Housekeeping. A row that is to be locked has to have a column that may be updated.
create policy background on idempotency_keys to palimpsest_background using (true) with check (true);
grant select (ctid, conversation_id, created_at), update (created_at), delete on idempotency_keys to palimpsest_background;
create policy background_removes on webhook_deliveries for delete to palimpsest_background using (true);
create policy background_locks on webhook_deliveries for update to palimpsest_background using (true) with check (true);
grant update (finished_at), delete on webhook_deliveries to palimpsest_background;
create policy background_removes on runs for delete to palimpsest_background using (true);
grant delete on runs to palimpsest_background;
create policy background_reads on run_steps for select to palimpsest_background using (true);
create policy background_removes on run_steps for delete to palimpsest_background using (true);
grant select (run_id), delete on run_steps to palimpsest_background;
create policy background_reads on snapshot_parts for select to palimpsest_background using (true);
create policy background_removes on snapshot_parts for delete to palimpsest_background using (true);
grant select (conversation_id, version, parent_version, covers_through, run_id, created_at), delete
    on snapshot_parts to palimpsest_background;
grant delete on model_batches, console_sessions to palimpsest_background;

-- Erasure: to remove and to blank, and to know which rows. Nothing that was said is among what may be read.
create policy background on erasures to palimpsest_background using (true) with check (true);
grant select, insert on erasures to palimpsest_background;
create policy background_erases on messages to palimpsest_background using (true) with check (true);
create policy background_erases on context_blocks to palimpsest_background using (true) with check (true);
create policy background_erases on pins to palimpsest_background using (true) with check (true);
create policy background_erases on assemblies to palimpsest_background using (true) with check (true);
create policy background_erases on run_steps for update to palimpsest_background using (true) with check (true);
grant select (conversation_id), delete on messages, context_blocks, pins, assemblies to palimpsest_background;
grant update (erased_at, external_id, user_ref, model, system, tools, policy, metadata, open_calls, head_version,
              pending_version, covers_through, check_request_id, revision) on conversations to palimpsest_background;
grant update (state, reason, error, policy, instructions, block_id, lease_token, lease_expires_at, finished_at)
    on runs to palimpsest_background;
grant update (detail, error) on run_steps to palimpsest_background;
grant update (state, answers, error, canary, fingerprint, reason, attempts, failures, next_attempt_at, finished_at)
    on model_batches to palimpsest_background;

-- Functions that act as palimpsest_background, and that the services alone may call; count_model_usage is a trigger's. Each has
-- a search path that ends with pg_temp: one that does not name it begins with it, for tables and types, and whoever could make
-- a temporary domain named `uuid` would have its check run as that role. For the same reason types that are no keywords are
-- named with their schema in them, and nobody but the owner may make anything temporary. A new owner needs the right to create
-- in the schema at the moment of the change, and only then.
grant create on schema public to palimpsest_background;
do $$
declare
    v_function text;
begin
    foreach v_function in array array[
        'due_states', 'clear_checks', 'overdue_checks_by_turns', 'over_by_fixed',
        'stranded_runs_by_turns', 'may_summarize', 'offer_summary', 'due_deliveries', 'due_waiting_summaries',
        'model_spending', 'model_totals', 'backlog', 'waiting_work', 'count_model_usage',
        'want_batches', 'due_batches', 'known_batches', 'expire_batches',
        'key_in_force', 'tenant_of_token', 'note_key_uses', 'rate_limits_since', 'find_console_session',
        'take_console_ticket', 'erase_conversation',
        'expire_idempotency_keys', 'expire_deliveries', 'expire_runs', 'expire_snapshots', 'expire_console_sessions'
    ] loop
        execute format('alter function %I owner to palimpsest_background', v_function);
        execute format('revoke execute on function %I from public', v_function);
        continue when v_function = 'count_model_usage';
        execute format('grant execute on function %I to palimpsest_service', v_function);
    end loop;
end $$;
revoke create on schema public from palimpsest_background;
do $$
begin
    execute format('revoke temporary on database %I from public', current_database());
exception when insufficient_privilege then
    raise notice 'only the owner of this database can do this: revoke temporary on database % from public',
        current_database();
end $$;

-- Auditors: the views, and of the tables no column that holds what was said.
grant select on compaction_history, conversation_costs, message_lineage to palimpsest_auditor;
create policy auditor on tenants for select to palimpsest_auditor using (true);
create policy auditor on conversations for select to palimpsest_auditor using (true);
create policy auditor on messages for select to palimpsest_auditor using (true);
create policy auditor on runs for select to palimpsest_auditor using (true);
create policy auditor on run_steps for select to palimpsest_auditor using (true);
create policy auditor on snapshot_parts for select to palimpsest_auditor using (true);
grant select (id, name) on tenants to palimpsest_auditor;
grant select (id, tenant_id, external_id, user_ref, created_at, erased_at, turn_count, context_tokens, head_version)
    on conversations to palimpsest_auditor;
grant select (tenant_id, conversation_id, seq, role, tokens, created_at, superseded_at) on messages to palimpsest_auditor;
grant select (id, tenant_id, conversation_id, trigger, state, reason, attempts, worker, request_id, created_at, started_at,
              finished_at, messages_before, messages_after, tokens_before, tokens_after) on runs to palimpsest_auditor;
grant select (run_id, tenant_id, step_no, name, state, reason, attempt, snapshot_version, messages_before, messages_after,
              tokens_before, tokens_after, results_cut, summarizer, model, prompt_version, model_calls, model_input_tokens,
              model_output_tokens, cost_usd, duration_ms, created_at) on run_steps to palimpsest_auditor;
grant select (tenant_id, conversation_id, version, parent_version, step, coverage, created_at) on snapshot_parts
    to palimpsest_auditor;
