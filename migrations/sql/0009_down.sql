-- Snapshots are whole again. The owner is bound by row-level security too; this is about every tenant.
alter table snapshot_parts no force row level security;
alter table snapshot_parts disable trigger snapshots_immutable;
update snapshot_parts as p set messages = s.messages
    from snapshots as s
    where s.conversation_id = p.conversation_id and s.version = p.version and p.messages is null;
alter table snapshot_parts enable trigger snapshots_immutable;
alter table snapshot_parts force row level security;
drop view snapshots;
drop function store_snapshot();
alter table snapshot_parts drop column part, drop column follows;
alter table snapshot_parts alter column messages set not null;
alter table snapshot_parts rename to snapshots;

-- As revision 0005 has it.
create or replace function guard_snapshots() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' and tg_table_name = 'snapshots' and current_user = 'palimpsest_background'
        and (current_setting('palimpsest.retention', true) = 'snapshots'
             or current_setting('palimpsest.erasure', true) = old.conversation_id::text) then
        return old;
    end if;
    raise exception '% is append-only', tg_table_name using errcode = 'restrict_violation';
end $$;

do $$
declare
    v_function regprocedure;
begin
    for v_function in
        select p.oid::regprocedure from pg_proc as p
        where p.pronamespace = 'public'::regnamespace and p.prosrc ~ 'public\.snapshot_parts\M'
            and p.proname <> 'read_context'
    loop
        execute regexp_replace(pg_get_functiondef(v_function), 'public\.snapshot_parts\M', 'public.snapshots', 'g');
    end loop;
end $$;
