-- What a run does, written down when it is queued. Code that does not know the column yet, and the append's function, leave it
-- out: the trigger fills it in, as it does for runs of before when they are next written. Only runs that had ended by then
-- have none.
alter table runs add column kind text;
create function write_run_kind() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    new.kind := case
        when new.trigger = 'context_block' then 'context_block'
        when new.trigger = 'batch' then 'batch'
        when new.base_version is not null then 'recovery'
        when new.trigger = 'manual' then 'manual'
        when new.trigger = 'check' then 'ladder'
        else 'request'
    end;
    return new;
end $$;
create trigger runs_kind before insert or update on runs for each row
    when (new.kind is null) execute function write_run_kind();

alter table runs add constraint ck_runs_kind
    check (kind in ('ladder', 'manual', 'recovery', 'context_block', 'batch', 'request')) not valid;
alter table runs add constraint ck_runs_trigger
    check (trigger in ('check', 'manual', 'overflow', 'budget', 'context_block', 'batch', 'pin', 'restore', 'fork', 'import'))
    not valid;
