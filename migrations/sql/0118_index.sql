-- One that was broken off is there already and no good.
drop index concurrently if exists ix_runs_failed;
create index concurrently ix_runs_failed on runs (tenant_id, id) where state = 'failed';
