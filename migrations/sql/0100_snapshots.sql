-- Most of what a snapshot shows is what the one before it showed, byte for byte: each cut of tool results leaves what the
-- last one left, and goes on behind it. That is stored once: the table keeps of each snapshot the part that is its own and
-- the versions whose parts come before it; this view has the messages as a whole, for all who read and write them.
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

-- Write a snapshot: whole where it does not begin with all that its parent shows, or where it would follow so many parts
-- that finding them costs a reader more than it saves the writer.
create function store_snapshot() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
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
