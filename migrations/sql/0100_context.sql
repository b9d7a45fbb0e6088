-- A context, one call: read_context, and what it is made of.

-- What of a tail is read to fill a room: everything from `starts` on, the `request` that was answered last, and that answer
-- (`answer` to `answered`, neighbouring assistant messages are one to the API) with the results it got. What nobody has
-- answered yet never takes its place, and may be shortened to p_least_tokens a message before any of it goes.
create function tail_window(
    p_conversation uuid, p_covers integer, p_cap integer, p_room double precision, p_factor double precision,
    p_least_tokens integer, out starts integer, out request integer, out answer integer, out answered integer
) language plpgsql stable as $$
declare
    v_shown double precision;
    v_tokens double precision := 0;
    v_least double precision := 0;
    m record;
begin
    select seq into answered from public.messages
        where conversation_id = p_conversation and role = 'assistant' and superseded_at is null
        order by seq desc limit 1;
    select seq into request from public.messages
        where conversation_id = p_conversation and is_request and seq < answered and superseded_at is null
        order by seq desc limit 1;
    select coalesce(max(seq), -1) + 1 into answer from public.messages
        where conversation_id = p_conversation and role <> 'assistant' and seq < answered and superseded_at is null;
    for m in select seq, role, is_request, tokens, view_tokens, result_chars,
                    lead(role) over (order by seq desc) as before
             from public.messages
             where conversation_id = p_conversation and seq > p_covers and superseded_at is null
             order by seq desc loop
        v_shown := p_factor * case
            when p_cap is null or m.result_chars is null then m.view_tokens
            else public.shown_tokens(m.tokens, m.view_tokens, m.result_chars, p_cap) end;
        v_tokens := v_tokens + v_shown;
        if m.seq > answered or answered is null then
            v_least := v_least + least(v_shown, p_least_tokens * p_factor);
            exit when v_least > p_room and starts is not null;
            starts := m.seq;
        else
            exit when v_tokens > p_room and starts <= answered;
            if (m.is_request and (m.seq <= request or request is null))
               or (m.role = 'assistant' and (m.seq > request or request is null)
                   and m.before is distinct from 'assistant') then
                starts := m.seq;
            end if;
        end if;
    end loop;
    starts := coalesce(starts, p_covers + 1);
end $$;

-- The seq that the newest p_bytes of a tail begin with: a request, or a round of the one that was answered last; the newest
-- message, however large it is, where there is none.
create function tail_within(
    p_conversation uuid, p_covers integer, p_request integer, p_bytes integer
) returns integer language sql stable as $$
    with newest as (
        select m.seq, m.role, m.is_request, sum(m.bytes) over (order by m.seq desc) as bytes,
               lag(m.role) over (order by m.seq) as before
        from public.messages as m
        where m.conversation_id = p_conversation and m.seq > p_covers and m.superseded_at is null)
    select coalesce(min(seq) filter (where bytes <= p_bytes
                                     and (is_request or (role = 'assistant' and seq > p_request
                                                         and before is distinct from 'assistant'))),
                    max(seq), p_covers + 1)
    from newest
$$;

-- Read the context. head and tail are JSON text to be joined; with plain = false the tail is an array of
-- [seq, role, content] and the caller has to cap, strip, repair or fit. Where the context is over its room (p_room, or
-- what the policy leaves), only the part of the tail that can fit is read, and the request it belongs to; gap tells
-- that older messages were left out. Of a tail it reads the newest p_read_bytes at most, and of a context of more than
-- p_most_bytes nothing but its size (withheld), so that the caller can make room for it first. With a matching p_etag nothing
-- is read. p_inline_tags tells whether the tenant names inline tool tags: then no tail is passed on unparsed. p_policy is a
-- digest of the tenant's policy; the conversation's own changes with its revision.
create function read_context(
    p_tenant uuid, p_conversation uuid, p_etag text, p_limits context_limits, p_policy text, p_inline_tags boolean,
    p_room integer, p_least_tokens integer, p_read_bytes integer, p_most_bytes integer,
    out etag text, out not_modified boolean, out plain boolean, out head text, out head_seqs integer[],
    out tail text, out head_version integer, out covers_through integer, out last_seq integer,
    out context_tokens integer, out measured_input_tokens integer, out result_cap integer,
    out strip_thinking_through integer, out pending_version integer, out policy text,
    out fixed_tokens integer, out factor double precision, out exchanges integer, out has_summary boolean,
    out gap boolean, out model text, out left_out text, out context_bytes bigint, out withheld boolean
) language plpgsql stable as $$
declare
    c record;
    v_beside integer;
    v_room integer;
    v_starts integer;
    v_request integer;
    v_answer integer;
    v_answered integer;
    v_follows integer[];
begin
    -- Called by itself, so that the setting ends with this statement's transaction.
    perform set_config('app.tenant_id', p_tenant::text, true);
    select r.* into c from public.conversations as r where r.id = p_conversation and r.tenant_id = p_tenant;
    if not found then
        return;
    end if;
    result_cap := coalesce(c.result_cap, p_limits.result_cap);
    etag := c.revision || '-' || p_policy;
    not_modified := p_room is null and etag is not distinct from p_etag;
    if not_modified then
        return;
    end if;
    head_version := c.head_version;
    covers_through := c.covers_through;
    last_seq := c.next_seq - 1;
    context_bytes := c.context_bytes;
    withheld := c.context_bytes > p_most_bytes;
    if withheld then
        return;
    end if;
    strip_thinking_through := c.strip_thinking_through;
    pending_version := c.pending_version;
    policy := c.policy::text;
    model := c.model;
    exchanges := c.context_exchanges;
    left_out := c.left_out;
    factor := c.token_ratio;
    -- These messages hold no context blocks: nothing of what is carried over stands beside them.
    v_beside := c.fixed_tokens - c.carried_tokens;
    context_tokens := ceil((c.context_tokens + v_beside) * c.token_ratio)::integer + c.unstored_tokens;
    if c.measured_tokens is not null and c.measured_version = c.head_version then
        factor := greatest(factor, (c.measured_tokens - c.unstored_tokens)::double precision
                                   / greatest(1, c.context_tokens + c.fixed_tokens + c.turn_context_tokens));
        context_tokens := c.measured_tokens;
        measured_input_tokens := c.measured_input_tokens;
    end if;
    -- In the measure of estimates, as the rest of them is: multiplied by the factor it is what stands beside the messages.
    fixed_tokens := v_beside + round(c.unstored_tokens / factor)::integer;
    v_room := p_room;
    if v_room is null and (c.policy = '{}' or not c.policy ?| array['total_token_budget', 'reserved_output_tokens']) then
        v_room := p_limits.total_token_budget - p_limits.reserved_output_tokens - ceil(fixed_tokens * factor)::integer;
    elsif v_room is null then
        v_room := coalesce((c.policy ->> 'total_token_budget')::integer, p_limits.total_token_budget)
            - coalesce((c.policy ->> 'reserved_output_tokens')::integer, p_limits.reserved_output_tokens)
            - ceil(fixed_tokens * factor)::integer;
    end if;
    gap := false;
    -- Who gives a room is going to fit other layers beside the history, and needs the messages one by one.
    -- So do inline results: only a parser knows where they are.
    plain := p_room is null and c.broken_through <= c.covers_through
        and not case when c.policy ? 'inline_tool_tags' then jsonb_array_length(c.policy -> 'inline_tool_tags') > 0
                     else p_inline_tags end;
    if c.context_tokens * factor > v_room or c.context_bytes > p_read_bytes then
        plain := false;
        select t.starts, t.request, t.answer, t.answered into v_starts, v_request, v_answer, v_answered
        from public.tail_window(p_conversation, c.covers_through, c.counted_cap, v_room, factor, p_least_tokens) as t;
        if c.context_bytes > p_read_bytes then
            v_starts := greatest(v_starts, public.tail_within(p_conversation, c.covers_through, v_request, p_read_bytes));
        end if;
        gap := v_starts > c.covers_through + 1;
    end if;
    if c.head_version > 0 then
        select case when s.follows = '{}' then coalesce(s.messages::text, s.part || ']') end, s.follows, s.seqs,
               s.summary is not null or s.pins <> '[]'
        into head, v_follows, head_seqs, has_summary
        from public.snapshot_parts as s where s.conversation_id = p_conversation and s.version = c.head_version;
        if v_follows <> '{}' then
            -- Sorted before they are joined: an aggregate that sorts reads the texts twice. The range keeps the index from
            -- being walked through all versions for that order.
            select string_agg(case when p.version = c.head_version then p.part || ']' else p.part end, '') into head
            from (select s.version, s.part from public.snapshot_parts as s
                  where s.conversation_id = p_conversation and s.version between v_follows[1] and c.head_version
                      and s.version = any (v_follows || c.head_version)
                  order by s.version) as p;
        end if;
    end if;
    if plain then
        select string_agg('{"role":"' || m.role || '","content":' || m.content::text || '}', ',' order by m.seq),
               coalesce(bool_and((m.result_chars is null or read_context.result_cap >= all (m.result_chars))
                                 and (not m.has_thinking or m.seq > c.strip_thinking_through)), true)
        into tail, plain
        from public.messages as m
        where m.conversation_id = p_conversation and m.seq > c.covers_through and m.superseded_at is null;
    end if;
    if not plain then
        select '[' || string_agg('[' || m.seq || ',"' || m.role || '",' || m.content::text || ']', ',' order by m.seq)
               || ']'
        into tail
        from public.messages as m
        where m.conversation_id = p_conversation and m.seq > c.covers_through and m.superseded_at is null
          and (not gap or m.seq >= v_starts or m.seq = v_request
               or (m.seq >= v_answer and (m.seq <= v_answered or m.result_chars is not null)));
    end if;
end $$;
