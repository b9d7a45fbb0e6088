-- Outside a transaction; see 0003_indexes.sql. Removing a context block looks for runs that name it.
drop index concurrently if exists ix_runs_block_id;
create index concurrently ix_runs_block_id on runs (block_id) where block_id is not null;
