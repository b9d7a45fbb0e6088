drop trigger runs_kind on runs;
drop function write_run_kind();
alter table runs drop constraint ck_runs_trigger, drop column kind;
