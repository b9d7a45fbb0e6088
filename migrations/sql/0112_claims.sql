-- What the lines of a summary rest on: `[[line, [seqs], support], ...]`, by the number of the line in `summary`, from 0. Not a
-- word of it is the conversation's, so that auditors may read it. Null where nothing is known: no summary, one of before, or
-- one that the API signed.
alter table snapshot_parts add column claims jsonb;
-- Statistics outlive what they quote.
alter table snapshot_parts alter column claims set statistics 0;

create or replace view snapshots with (security_invoker = true) as
select p.tenant_id, p.conversation_id, p.version, p.parent_version, p.run_id, p.step, p.covers_through,
       coalesce(p.messages, (coalesce((
           select string_agg(earlier.part, '')
           from (select e.part from public.snapshot_parts as e
                 where e.conversation_id = p.conversation_id and e.version between p.follows[1] and p.version
                     and e.version = any (p.follows)
                 order by e.version) as earlier), '') || p.part || ']')::json) as messages,
       p.seqs, p.coverage, p.summary, p.summarizer, p.tokens, p.message_count, p.bytes, p.exchanges, p.prefix_hash,
       p.created_at, p.pins, p.claims
from public.snapshot_parts as p;

create or replace function store_snapshot() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
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
        summary, summarizer, tokens, message_count, bytes, exchanges, prefix_hash, created_at, pins, claims)
    values (
        new.tenant_id, new.conversation_id, new.version, new.parent_version, new.run_id, new.step, new.covers_through, v_part,
        v_follows, new.seqs, new.coverage, new.summary, new.summarizer, new.tokens, new.message_count, new.bytes,
        new.exchanges, new.prefix_hash, new.created_at, new.pins, new.claims);
    return new;
end $$;

-- For auditors: a row for each line of a summary that says something.
create view claims with (security_invoker = true) as
select t.name as tenant,
       s.conversation_id,
       s.version,
       s.run_id,
       (claim.value ->> 0)::integer as line,
       array(select seq.value::integer from jsonb_array_elements_text(claim.value -> 1) as seq)::integer[] as seqs,
       claim.value ->> 2 as support,
       s.created_at
from snapshot_parts as s
    join tenants as t on t.id = s.tenant_id
    cross join lateral jsonb_array_elements(s.claims) as claim;
grant select on claims to palimpsest_auditor;
grant select (run_id, claims) on snapshot_parts to palimpsest_auditor;
