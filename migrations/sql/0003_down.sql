drop index ix_runs_tenant_id_id, ix_runs_dead, ix_snapshots_run_id, ix_webhook_deliveries_run_id,
    ix_idempotency_keys_created_at;
drop function expire_idempotency_keys(double precision, integer), expire_deliveries(double precision, integer),
    expire_runs(uuid, double precision, integer), expire_snapshots(uuid, double precision, integer),
    first_id_at(timestamptz), backlog(), overdue_checks_by_turns(double precision, integer),
    stranded_runs_by_turns(double precision, integer, integer), may_summarize(uuid, integer, integer),
    offer_summary(integer);
drop policy background on idempotency_keys;
drop policy background_removes on webhook_deliveries;
drop policy background_locks on webhook_deliveries;
drop policy background_removes on runs;
drop policy background_offers on runs;
drop policy background_reads on run_steps;
drop policy background_removes on run_steps;
drop policy background_reads on snapshots;
drop policy background_removes on snapshots;
revoke select (ctid, created_at), update (created_at), delete on idempotency_keys from palimpsest_background;
revoke select (run_id, finished_at), update (finished_at), delete on webhook_deliveries from palimpsest_background;
revoke select (finished_at, queue, attempts), update (queued_at), delete on runs from palimpsest_background;
revoke select (run_id), delete on run_steps from palimpsest_background;
revoke select (conversation_id, version, parent_version, covers_through, run_id, created_at), delete
    on snapshots from palimpsest_background;
revoke select on alembic_version from palimpsest_service;
drop table processes;
