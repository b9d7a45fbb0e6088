-- The three roles stay: other databases of the same server may use them.
drop view message_lineage, conversation_costs, compaction_history, snapshots;
drop table processes, operator_actions, console_sessions, erasures, model_usage, waiting_summaries, model_batches,
    webhook_deliveries, webhooks, snapshot_parts, run_steps, runs, assemblies, pins, context_blocks, idempotency_keys,
    messages, conversations, api_keys, tenants;
drop function add_context_blocks, append_turn, backlog, clear_checks, count_model_usage, due_batches, due_deliveries,
    due_states, due_waiting_summaries, erase_conversation, expire_batches, expire_console_sessions, expire_deliveries,
    expire_idempotency_keys, expire_runs, expire_snapshots, find_console_session, first_id_at, guard_erased,
    guard_erased_batches, guard_erased_runs, guard_erased_steps, guard_keys, guard_messages, guard_sessions,
    guard_snapshots, is_there, key_in_force, known_batches, learn_count, may_summarize, model_spending, model_totals,
    move_head, newest_version_below, note_key_uses, offer_summary, over_by_fixed, overdue_checks_by_turns,
    rate_limits_since, read_context, recount_carried, recount_end, recount_results, shown_tokens, snapshot_chain,
    store_snapshot, stranded_runs_by_turns, supersede, tail_window, tail_within, take_console_ticket, tenant_of_token,
    tokens_over_cap, waiting_work, want_batches, without_words;
drop type turn_messages, turn_facts, turn_usage, turn_context, context_limits;
revoke select on alembic_version from palimpsest_service;
revoke usage on schema public from palimpsest_service, palimpsest_background, palimpsest_auditor;
do $$
begin
    execute format('grant temporary on database %I to public', current_database());
exception when insufficient_privilege then
    raise notice 'only the owner of this database can do this: grant temporary on database % to public',
        current_database();
end $$;
