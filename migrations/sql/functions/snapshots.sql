-- Write a snapshot: as the part that follows its parent's, if it begins with all that its parent shows; whole otherwise, or if
-- it would follow so many parts that finding them costs readers more than it saves.
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
        summary, summarizer, tokens, message_count, bytes, exchanges, prefix_hash, created_at, pins, claims, media)
    values (
        new.tenant_id, new.conversation_id, new.version, new.parent_version, new.run_id, new.step, new.covers_through, v_part,
        v_follows, new.seqs, new.coverage, new.summary, new.summarizer, new.tokens, new.message_count, new.bytes,
        new.exchanges, new.prefix_hash, new.created_at, new.pins, new.claims, new.media);
    return new;
end $$;
create or replace trigger snapshots_stored instead of insert on snapshots for each row execute function store_snapshot();

-- Return a snapshot and all that it came from, the newest first.
create or replace function snapshot_chain(p_conversation uuid, p_version integer)
returns table (version integer, covers_through integer) language sql stable as $$
    with recursive chain as (
        select s.version, s.parent_version, s.covers_through from public.snapshot_parts as s
            where s.conversation_id = p_conversation and s.version = p_version
        union all
        select s.version, s.parent_version, s.covers_through from chain
            join public.snapshot_parts as s on s.conversation_id = p_conversation and s.version = chain.parent_version
    )
    select chain.version, chain.covers_through from chain order by chain.version desc
$$;

-- Return the newest snapshot that the head came from and that covers no message from p_from on, nor has a pin of one; 0 =
-- none.
create or replace function newest_version_below(p_conversation uuid, p_from integer) returns integer
language sql stable as $$
    select coalesce(max(chain.version), 0)
    from public.conversations as c
        cross join lateral public.snapshot_chain(p_conversation, c.head_version) as chain
        join public.snapshot_parts as s on s.conversation_id = p_conversation and s.version = chain.version
    where c.id = p_conversation and chain.covers_through < p_from
        and not exists (select from jsonb_array_elements(s.pins) as pin where (pin ->> 1)::integer >= p_from)
$$;

-- Return whether a snapshot has nothing of message p_from and those after it.
create or replace function stands_before(p_conversation uuid, p_version integer, p_from integer) returns boolean
language sql stable as $$
    select exists (
        select from public.snapshot_parts as s
        where s.conversation_id = p_conversation and s.version = p_version and s.covers_through < p_from
            and not exists (select from jsonb_array_elements(s.pins) as pin where (pin ->> 1)::integer >= p_from))
$$;

-- Return whether a message holds nothing but reasoning: an item of its own in Responses. Such a message is not named as left
-- out.
create or replace function is_reasoning_alone(p_conversation uuid, p_seq integer) returns boolean language sql stable as $$
    select coalesce(bool_and(case when m.has_thinking then not exists (
            select from json_array_elements(m.content) as block
            where block ->> 'type' not in ('thinking', 'redacted_thinking')) else false end), false)
    from public.messages as m where m.conversation_id = p_conversation and m.seq = p_seq
$$;

-- Make a snapshot the head. No other function moves the head. Counters are counted anew from the snapshot and the tail; the
-- API's token count and signed thinking stored so far are no longer valid.
create or replace function move_head(p_conversation uuid, p_version integer) returns void language sql as $$
    update public.conversations as c
    set head_version = p_version,
        last_version = greatest(c.last_version, p_version),
        pending_version = null,
        covers_through = s.covers_through,
        context_tokens = s.tokens + tail.tokens,
        context_messages = s.message_count + tail.messages,
        context_bytes = s.bytes + tail.bytes,
        context_exchanges = s.exchanges + tail.exchanges,
        head_moved_at = c.next_seq,
        strip_thinking_through = c.next_seq - 1,
        -- The hold of a restore is one on the restored head.
        tool_results_hold = case when c.held_by_restore then 0 else c.tool_results_hold end,
        summary_hold = case when c.held_by_restore then 0 else c.summary_hold end,
        trim_hold = case when c.held_by_restore then 0 else c.trim_hold end,
        held_by_restore = false,
        left_out = s.left_out,
        revision = public.next_revision(c.revision)
    from (select covers_through, tokens, message_count, bytes, exchanges,
                 (select string_agg(case when span ->> 0 = span ->> 1 then span ->> 0
                                         else (span ->> 0) || '-' || (span ->> 1) end, ', ' order by (span ->> 0)::integer)
                  from jsonb_array_elements(coverage) as span
                  where span ->> 2 = 'dropped'
                    and not (span ->> 0 = span ->> 1
                             and public.is_reasoning_alone(p_conversation, (span ->> 0)::integer))) as left_out
          from public.snapshot_parts where conversation_id = p_conversation and version = p_version
          union all select -1, 0, 0, 0, 0, null where p_version = 0) as s,
         lateral (select coalesce(sum(public.shown_tokens(m.tokens, m.view_tokens, m.result_chars, own.counted_cap)), 0)
                             ::integer as tokens,
                         count(*)::integer as messages,
                         coalesce(sum(m.bytes), 0) as bytes,
                         (count(*) filter (where m.is_request))::integer as exchanges
                  from public.messages as m join public.conversations as own on own.id = m.conversation_id
                  where m.conversation_id = p_conversation and m.seq > s.covers_through
                    and m.superseded_at is null) as tail
    where c.id = p_conversation
$$;
