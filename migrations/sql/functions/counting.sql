-- Return a conversation's next revision, which its ETag is made of. A failover or a restored backup may lose the newest
-- changes, and later ones would get the same numbers: 32 random bits tell them apart. A bigint has room for two thousand
-- million changes.
create or replace function next_revision(p_revision bigint) returns bigint language sql volatile as $$
    select p_revision + 1 + floor(random() * 4294967296)::bigint
$$;

-- Return the tokens that the view cap hides in tool results: characters over the cap, at four a token, rounded for each
-- message, so that the counter stays the sum of the rows.
create or replace function tokens_over_cap(p_result_chars text[], p_cap integer) returns integer language sql immutable as $$
    select coalesce(sum(hidden.chars / 4), 0)::integer
    from (select sum(greatest(0, each_result.chars - p_cap)) as chars
          from unnest(p_result_chars) with ordinality as message (list, place),
               unnest(message.list::integer[]) as each_result (chars)
          group by message.place) as hidden
$$;

-- Return the tokens of a message in the view under the cap that its conversation is counted with.
create or replace function shown_tokens(p_tokens integer, p_view_tokens integer, p_result_chars integer[], p_cap integer)
returns integer language sql stable as $$
    select case when p_cap is null or p_result_chars is null then p_view_tokens
                else p_tokens - public.tokens_over_cap(array[p_result_chars::text], p_cap) end
$$;

-- Return whether two counts can have the same tokens beside their histories: the histories differ, and the larger one is
-- counted larger by at most twice the difference of the estimates.
create or replace function counts_agree(
    p_estimated integer, p_counted integer, p_other_estimated integer, p_other_counted integer
) returns boolean language sql immutable parallel safe
return abs(p_estimated::bigint - p_other_estimated) >= 200
    and (p_counted::bigint - p_other_counted) * sign(p_estimated::bigint - p_other_estimated)
        <= 2 * abs(p_estimated::bigint - p_other_estimated) + 100;

-- Learn from one call: p_counted tokens by the API's count, p_estimated by the estimate. A count is taken for unstored + ratio
-- * estimate, with a ratio between 0.5 and 2. An excess over that is unstored only if three calls with different histories
-- agree on it: counts that are sums over several calls grow faster than their histories do. p_last has estimate and count of
-- the last two such calls, the newer first. The ratio is the median of the newest five samples; a count that is too large is
-- no sample. 500 tokens are allowed for what surrounds messages.
create or replace function learn_count(
    p_counted integer, p_estimated integer, p_samples real[], p_ratio real, p_unstored integer, p_last integer[],
    out samples real[], out ratio real, out unstored integer, out last_count integer[]
) language plpgsql immutable as $$
declare
    v_least integer := greatest(0, p_counted - 2 * p_estimated - 500);
    v_most integer := greatest(0, p_counted - p_estimated / 2 + 500);
    v_is_other boolean;
begin
    samples := p_samples;
    ratio := p_ratio;
    unstored := p_unstored;
    if unstored > v_most then
        -- What is sent along is never more than the whole.
        unstored := v_most;
    elsif unstored < v_least and cardinality(p_last) >= 4
        and public.counts_agree(p_estimated, p_counted, p_last[1], p_last[2])
        and public.counts_agree(p_estimated, p_counted, p_last[3], p_last[4])
        and public.counts_agree(p_last[1], p_last[2], p_last[3], p_last[4]) then
        v_least := greatest(v_least, p_last[2] - 2 * p_last[1] - 500, p_last[4] - 2 * p_last[3] - 500);
        v_most := least(v_most, greatest(0, p_last[2] - p_last[1] / 2 + 500), greatest(0, p_last[4] - p_last[3] / 2 + 500));
        if v_least <= v_most then
            unstored := least(v_most, greatest(v_least, round(p_counted - p_ratio * p_estimated)::integer));
        end if;
    end if;
    v_is_other := p_last is null or abs(p_estimated::bigint - p_last[1]) >= 200;
    last_count := case
        when v_is_other then (array[p_estimated, p_counted] || p_last)[:4]
        -- The history is nearly that of the last call: kept is the count that the next ones are held against.
        when abs(p_counted::bigint - p_last[2]) <= 500 then p_last
        else (array[p_estimated, p_counted] || p_last[3:4])[:4] end;
    if p_estimated >= 500 and p_counted <= unstored + 2::bigint * p_estimated + 500 then
        samples := (p_samples || greatest(0.5, least(2, (p_counted - unstored)::real / p_estimated))::real)
                   [greatest(1, cardinality(p_samples) - 3):];
        ratio := (select percentile_cont(0.5) within group (order by each) from unnest(samples) as each);
    end if;
end $$;

-- Count the context blocks that are carried over: their outlines are a part of every input. turn_context_tokens has what the
-- blocks of the current exchange have beyond that in full, which later exchanges do not have.
create or replace function recount_carried(p_conversation uuid) returns void language sql as $$
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

-- Count anew what an append keeps about the end of a conversation, from the messages that are in force. Each reader of `live`
-- goes back from the newest message to the first that it looks for. The settings keep the planner from reading a conversation
-- as a whole.
create or replace function recount_end(p_conversation uuid) returns void
language sql set enable_bitmapscan to off set enable_seqscan to off as $$
    with live as not materialized (
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

-- Count the context anew under another cap on tool results. If it shows anything else than before, the API's count and signed
-- thinking are no longer valid.
create or replace function recount_results(p_conversation uuid, p_cap integer) returns void language sql as $$
    update public.conversations set counted_cap = p_cap, revision = public.next_revision(revision)
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
