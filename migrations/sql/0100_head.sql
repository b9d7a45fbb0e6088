-- The counters that every conversation keeps of its own context, and the snapshot at its head.

-- Tokens that the view cap hides in a turn's tool results: characters over the cap, at four a token, rounded for each
-- message by itself, so that the counter stays the sum of what is stored.
create function tokens_over_cap(p_result_chars text[], p_cap integer) returns integer language sql immutable as $$
    select coalesce(sum(hidden.chars / 4), 0)::integer
    from (select sum(greatest(0, each_result.chars - p_cap)) as chars
          from unnest(p_result_chars) with ordinality as message (list, place),
               unnest(message.list::integer[]) as each_result (chars)
          group by message.place) as hidden
$$;

-- Tokens of a message in the view: as they were counted when it came, but those of tool results under the cap, which may
-- have changed since.
create function shown_tokens(p_tokens integer, p_view_tokens integer, p_result_chars integer[], p_cap integer)
returns integer language sql stable as $$
    select case when p_cap is null or p_result_chars is null then p_view_tokens
                else p_tokens - public.tokens_over_cap(array[p_result_chars::text], p_cap) end
$$;

-- A snapshot and everything it came from, newest first.
create function snapshot_chain(p_conversation uuid, p_version integer)
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

-- The newest snapshot that the head came from and that covers no message from p_from on, nor has a pin of one; 0 for none.
create function newest_version_below(p_conversation uuid, p_from integer) returns integer
language sql stable as $$
    select coalesce(max(chain.version), 0)
    from public.conversations as c
        cross join lateral public.snapshot_chain(p_conversation, c.head_version) as chain
        join public.snapshot_parts as s on s.conversation_id = p_conversation and s.version = chain.version
    where c.id = p_conversation and chain.covers_through < p_from
        and not exists (select from jsonb_array_elements(s.pins) as pin where (pin ->> 1)::integer >= p_from)
$$;

-- Make a snapshot the head. The one place where the head moves: the counters are counted anew from the snapshot and
-- the tail, the API's token count is stale from here on, and so is signed thinking in what is stored already.
create function move_head(p_conversation uuid, p_version integer) returns void language sql as $$
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
        revision = c.revision + 1
    from (select covers_through, tokens, message_count, bytes, exchanges,
                 (select string_agg(case when span ->> 0 = span ->> 1 then span ->> 0
                                         else (span ->> 0) || '-' || (span ->> 1) end, ', ' order by (span ->> 0)::integer)
                  from jsonb_array_elements(coverage) as span where span ->> 2 = 'dropped') as left_out
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

-- Count the context anew under another cap on tool results. Where it shows something else than before, nothing that the API
-- counted is true any more, and what was signed was signed for another prefix.
create function recount_results(p_conversation uuid, p_cap integer) returns void language sql as $$
    update public.conversations set counted_cap = p_cap, revision = revision + 1
    where id = p_conversation and counted_cap is distinct from p_cap;
    update public.conversations as c
    set context_tokens = shown.tokens,
        measured_tokens = null,
        measured_input_tokens = null,
        measured_version = null,
        head_moved_at = c.next_seq,
        strip_thinking_through = c.next_seq - 1
    from (select (coalesce((select s.tokens from public.snapshot_parts as s
                            where s.conversation_id = r.id and s.version = r.head_version), 0)
                  + coalesce((select sum(public.shown_tokens(m.tokens, m.view_tokens, m.result_chars, p_cap))
                              from public.messages as m
                              where m.conversation_id = r.id and m.seq > r.covers_through
                                and m.superseded_at is null), 0))::integer as tokens
          from public.conversations as r where r.id = p_conversation) as shown
    where c.id = p_conversation and c.context_tokens <> shown.tokens
$$;

-- What an append keeps up to date about the end of a conversation, worked out anew from what is left of it.
create function recount_end(p_conversation uuid) returns void language sql as $$
    with live as (
        select seq, role, content, is_request, has_thinking, result_chars from public.messages
        where conversation_id = p_conversation and superseded_at is null
    ), newest as (
        select role, content, is_request from live order by seq desc limit 1
    ), calls as (
        select coalesce(array_agg(block ->> 'id' order by block ->> 'id' collate "C"), '{}') as ids
        from newest, lateral json_array_elements(
            case when newest.role = 'assistant' and json_typeof(newest.content) = 'array'
                 then newest.content else '[]'::json end) as block
        where block ->> 'type' = 'tool_use'
    )
    update public.conversations as c
    set open_calls = calls.ids,
        in_loop = cardinality(calls.ids) > 0
            or exists (select from newest where newest.role = 'user' and not newest.is_request),
        loop_has_thinking = exists (
            select from live where has_thinking
                and seq > coalesce((select max(seq) from live where is_request), -1)),
        last_request = coalesce((select max(seq) from live where is_request), -1),
        newest_result = coalesce((select max(seq) from live where result_chars is not null), -1),
        results_cut_through = -1,
        tool_results_hold = 0,
        summary_hold = 0,
        trim_hold = 0,
        measured_tokens = null,
        measured_input_tokens = null,
        measured_version = null
    from calls
    where c.id = p_conversation
$$;

-- What is carried over counts as a part of every input, beside the system prompt and the tools. What the blocks of the
-- current exchange have beyond that, in full, is turn_context_tokens: calls may have seen it, the next exchange does not.
create function recount_carried(p_conversation uuid) returns void language sql as $$
    update public.conversations as c
    set carried_tokens = carried.tokens, fixed_tokens = c.fixed_tokens - c.carried_tokens + carried.tokens,
        turn_context_tokens = recent.tokens
    from (select coalesce(sum(b.outline_tokens), 0)::integer as tokens from public.context_blocks as b
          where b.conversation_id = p_conversation and b.carried_until is null and b.superseded_at is null) as carried,
         (select coalesce(sum(b.tokens - case when b.carried_until is null then b.outline_tokens else 0 end), 0)::integer
                 as tokens
          from public.context_blocks as b
          where b.conversation_id = p_conversation and b.superseded_at is null
            and b.seq >= (select o.last_request from public.conversations as o where o.id = p_conversation)) as recent
    where c.id = p_conversation
$$;

-- Take the messages from p_from on out of the context, and the context blocks that came with them. They stay stored; the
-- head goes back along its chain to the newest snapshot that covers none of them, and a run that was started on the old
-- prefix fails its compare-and-swap.
create function supersede(p_conversation uuid, p_from integer) returns void language plpgsql as $$
declare
    c record;
    v_version integer;
begin
    update public.messages set superseded_at = now()
        where conversation_id = p_conversation and seq >= p_from and superseded_at is null;
    update public.context_blocks set superseded_at = now()
        where conversation_id = p_conversation and seq >= p_from and superseded_at is null;
    update public.context_blocks set carried_until = null
        where conversation_id = p_conversation and carried_until >= p_from;
    update public.conversations set edits = edits + 1, pending_version = null where id = p_conversation
        returning head_version, next_seq, strip_thinking_through, held_by_restore, tool_results_hold, summary_hold, trim_hold
        into c;
    v_version := public.newest_version_below(p_conversation, p_from);
    perform public.move_head(p_conversation, v_version);
    perform public.recount_end(p_conversation);
    perform public.recount_carried(p_conversation);
    if v_version = c.head_version then
        -- Nothing before the messages that are left has changed: what was signed stays valid, what was restored restored.
        update public.conversations
            set strip_thinking_through = c.strip_thinking_through, head_moved_at = least(head_moved_at, p_from)
            where id = p_conversation;
        update public.conversations
            set held_by_restore = true, tool_results_hold = c.tool_results_hold, summary_hold = c.summary_hold,
                trim_hold = c.trim_hold
            where id = p_conversation and c.held_by_restore;
    end if;
end $$;
