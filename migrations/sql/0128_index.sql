drop index concurrently if exists ix_runs_waiting_summaries;
create index concurrently ix_runs_waiting_summaries on runs (tenant_id, queued_at, id)
    where state = 'queued' and queue = 'summaries';
