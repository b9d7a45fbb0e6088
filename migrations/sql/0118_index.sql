create index concurrently if not exists ix_runs_failed on runs (tenant_id, id) where state = 'failed';
