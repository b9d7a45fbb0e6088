-- Outside a transaction, one statement at a time: writes go on while an index is built. One that was broken off before is
-- there already and no good, so it goes first.

-- Lists of a tenant's runs, and of its dead ones.
drop index concurrently if exists ix_runs_tenant_id_id;
create index concurrently ix_runs_tenant_id_id on runs (tenant_id, id);
drop index concurrently if exists ix_runs_dead;
create index concurrently ix_runs_dead on runs (tenant_id, id) where state = 'dead';

-- Whether anything still names a run that is to be removed.
drop index concurrently if exists ix_snapshots_run_id;
create index concurrently ix_snapshots_run_id on snapshots (run_id);
drop index concurrently if exists ix_webhook_deliveries_run_id;
create index concurrently ix_webhook_deliveries_run_id on webhook_deliveries (run_id);

-- Old keys. Rows come in the order of time, and this kind of index costs an append next to nothing.
drop index concurrently if exists ix_idempotency_keys_created_at;
create index concurrently ix_idempotency_keys_created_at on idempotency_keys using brin (created_at);
