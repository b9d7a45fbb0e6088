-- Most of what a snapshot shows is what the one before it showed, byte for byte: each cut of tool results leaves what the
-- last one left, and goes on behind it. That is stored once. The table keeps of each snapshot the part that is its own and
-- the versions whose parts come before it; the view `snapshots` has the messages as a whole, as the table had them so far,
-- for all who read and write them by that name.
-- squawk-ignore renaming-table -- the view takes over the name in the same transaction
alter table snapshots rename to snapshot_parts;
-- `part` is JSON without the closing bracket, so that parts are joined as they are. Rows of before have their text in
-- `messages`, and nothing follows them.
-- squawk-ignore ban-drop-not-null -- the table is read through the view, which has a text for every row
alter table snapshot_parts alter column messages drop not null;
alter table snapshot_parts add column part text, add column follows integer[] not null default '{}';
do $$
begin
    alter table snapshot_parts alter column part set compression lz4;
exception when feature_not_supported or invalid_parameter_value then
    raise notice 'this server has no lz4; snapshots are compressed with pglz';
end $$;

create view snapshots with (security_invoker = true) as
select p.tenant_id, p.conversation_id, p.version, p.parent_version, p.run_id, p.step, p.covers_through,
       coalesce(p.messages, (coalesce((
           select string_agg(earlier.part, '')
           from (select e.part from public.snapshot_parts as e
                 where e.conversation_id = p.conversation_id and e.version between p.follows[1] and p.version
                     and e.version = any (p.follows)
                 order by e.version) as earlier), '') || p.part || ']')::json) as messages,
       p.seqs, p.coverage, p.summary, p.summarizer, p.tokens, p.message_count, p.bytes, p.exchanges, p.prefix_hash,
       p.created_at, p.pins
from public.snapshot_parts as p;
alter view snapshots alter column created_at set default now();
alter view snapshots alter column pins set default '[]';
grant select, insert on snapshots to palimpsest_service;

-- Write a snapshot: whole where it does not begin with all that its parent shows, or where it would follow so many parts
-- that finding them costs a reader more than it saves the writer.
create function store_snapshot() returns trigger language plpgsql as $$
declare
    v_longest constant integer := 16;
    v_part text := left(rtrim(new.messages::text, E' \t\n\r'), -1);
    v_before text;
    v_follows integer[];
begin
    if json_typeof(new.messages) <> 'array' then
        raise exception 'the messages of a snapshot are an array' using errcode = 'check_violation';
    end if;
    select left(s.messages::text, -1), p.follows || p.version into v_before, v_follows
    from public.snapshot_parts as p
        join public.snapshots as s on s.conversation_id = p.conversation_id and s.version = p.version
    where p.conversation_id = new.conversation_id and p.version = new.parent_version and p.part is not null
        and cardinality(p.follows) < v_longest;
    if starts_with(v_part, v_before || ',') then
        v_part := substr(v_part, length(v_before) + 1);
    else
        v_follows := '{}';
    end if;
    insert into public.snapshot_parts (
        tenant_id, conversation_id, version, parent_version, run_id, step, covers_through, part, follows, seqs, coverage,
        summary, summarizer, tokens, message_count, bytes, exchanges, prefix_hash, created_at, pins)
    values (
        new.tenant_id, new.conversation_id, new.version, new.parent_version, new.run_id, new.step, new.covers_through, v_part,
        v_follows, new.seqs, new.coverage, new.summary, new.summarizer, new.tokens, new.message_count, new.bytes,
        new.exchanges, new.prefix_hash, new.created_at, new.pins);
    return new;
end $$;
create trigger snapshots_stored instead of insert on snapshots for each row execute function store_snapshot();
create trigger snapshots_immutable instead of update or delete on snapshots
    for each row execute function guard_snapshots();

-- As the function of revision 0005: the exceptions are those of the table, by its new name.
create or replace function guard_snapshots() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' and tg_table_name = 'snapshot_parts' and current_user = 'palimpsest_background'
        and (current_setting('palimpsest.retention', true) = 'snapshots'
             or current_setting('palimpsest.erasure', true) = old.conversation_id::text) then
        return old;
    end if;
    raise exception '% is append-only', tg_table_name using errcode = 'restrict_violation';
end $$;

-- Functions that ask for no messages, and those that remove, go to the table: their role needs nothing of the view, which
-- takes no deletion. Retention goes from the end of a branch backwards, so that no part is taken from under a later one.
do $$
declare
    v_function regprocedure;
begin
    for v_function in
        select p.oid::regprocedure from pg_proc as p
        where p.pronamespace = 'public'::regnamespace and p.prosrc ~ 'public\.snapshots\M'
            and p.proname not in ('read_context', 'store_snapshot')
    loop
        execute regexp_replace(pg_get_functiondef(v_function), 'public\.snapshots\M', 'public.snapshot_parts', 'g');
    end loop;
end $$;
