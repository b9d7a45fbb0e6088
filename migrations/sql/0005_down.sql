-- What was erased stays so: of an erased conversation an empty one is left.
drop function erase_conversation(uuid, uuid, text, uuid, uuid), without_words(jsonb);
drop trigger snapshots_not_erased on snapshots;
drop trigger context_blocks_not_erased on context_blocks;
drop trigger pins_not_erased on pins;
drop trigger runs_not_erased on runs;
drop trigger run_steps_not_erased on run_steps;
drop trigger model_batches_not_erased on model_batches;
drop function guard_erased(), guard_erased_runs(), guard_erased_steps(), guard_erased_batches(), is_there(uuid);
drop policy background_erases on messages;
drop policy background_erases on context_blocks;
drop policy background_erases on pins;
drop policy background_erases on assemblies;
drop policy background_erases on run_steps;
revoke select (conversation_id), delete on messages, context_blocks, pins, assemblies from palimpsest_background;
revoke select (conversation_id) on idempotency_keys from palimpsest_background;
revoke select (reason, policy) on runs from palimpsest_background;
revoke update (state, reason, error, policy, instructions, block_id, lease_token, lease_expires_at, finished_at)
    on runs from palimpsest_background;
revoke update (detail, error) on run_steps from palimpsest_background;
revoke update (state, answers, error, canary, fingerprint, reason, attempts, failures, next_attempt_at, finished_at)
    on model_batches from palimpsest_background;
revoke update (external_id, user_ref, model, system, tools, policy, metadata, open_calls, head_version, pending_version,
               covers_through, check_request_id, revision) on conversations from palimpsest_background;
drop index ix_runs_block_id;
drop table erasures;
alter policy tenant on conversations
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
alter table conversations drop column erased_at;
-- As revision 0003 has it.
create or replace function guard_snapshots() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' and tg_table_name = 'snapshots' and current_user = 'palimpsest_background'
        and current_setting('palimpsest.retention', true) = 'snapshots' then
        return old;
    end if;
    raise exception '% is append-only', tg_table_name using errcode = 'restrict_violation';
end $$;
