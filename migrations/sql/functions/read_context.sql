-- Return a message as it was sent. For a message of another shape whose text stands in its content too, p_sent has only what
-- surrounds that text: an array of two texts, of at most 500 bytes. A larger p_sent is the whole message, which the size tells
-- without decompressing it.
create or replace function as_sent(p_role text, p_content json, p_sent json) returns text language sql stable as $$
    select case
        when p_sent is null then '{"role":"' || p_role || '","content":' || p_content::text || '}'
        when pg_column_size(p_sent) <= 512 and json_typeof(p_sent) = 'array'
            then (p_sent ->> 0) || p_content::text || (p_sent ->> 1)
        else p_sent::text
    end
$$;

-- Choose what of a tail is read to fill a room of tokens: everything from `starts` on, which is the newest rounds that fit and
-- the one before them, to be cut; the `request` that they belong to; and the newest answer (`answer` to `answered`; the API
-- takes neighbouring assistant messages for one) with its results. Unanswered messages never take its place, and may be cut to
-- p_least_tokens each before one is left out.
create or replace function tail_window(
    p_conversation uuid, p_covers integer, p_cap integer, p_room double precision, p_factor double precision,
    p_least_tokens integer, out starts integer, out request integer, out answer integer, out answered integer
) language plpgsql stable as $$
declare
    v_shown double precision;
    v_tokens double precision := 0;
    v_least double precision := 0;
    v_before integer;
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
        elsif m.is_request or (m.role = 'assistant' and m.before is distinct from 'assistant') then
            starts := m.seq;
            exit when v_tokens > p_room;
        end if;
    end loop;
    -- All of it was gone through, and fits: what the head shows of its first exchange may, too.
    if starts is null or v_tokens <= p_room then
        starts := p_covers + 1;
    end if;
    -- What a server tool's code called, and its result, belong to the call of that tool, rounds before.
    loop
        select max(earlier.seq) into v_before
        from public.messages as first join public.messages as earlier using (conversation_id)
        where first.conversation_id = p_conversation and first.seq = starts and first.role = 'assistant'
          and first.content::text ~ '"caller"\s*:\s*\{[^{}]*"tool_id"|"[a-z_]+_tool_result"'
          and first.content::text !~ '"(server|mcp)_tool_use"'
          and earlier.seq > greatest(p_covers, case when starts > request then request end) and earlier.seq < starts
          and earlier.role = 'assistant' and earlier.superseded_at is null;
        exit when v_before is null;
        select coalesce(max(seq), p_covers) + 1 into starts from public.messages
            where conversation_id = p_conversation and seq > p_covers and seq < v_before and role <> 'assistant'
              and superseded_at is null;
    end loop;
    if starts < request then
        select coalesce(max(seq), p_covers) into request from public.messages
            where conversation_id = p_conversation and is_request and seq > p_covers and seq <= starts
              and superseded_at is null;
    end if;
end $$;

-- Return the seq that the newest p_bytes of a tail begin with: a request, or a round of the one that was answered last. If
-- there is none, it is the newest message, however large.
create or replace function tail_within(
    p_conversation uuid, p_covers integer, p_request integer, p_bytes integer
) returns integer language sql stable as $$
    with newest as (
        select m.seq, m.role, m.is_request, sum(m.bytes) over (order by m.seq desc) as bytes,
               lag(m.role) over (order by m.seq) as before
        from public.messages as m
        where m.conversation_id = p_conversation and m.seq > p_covers and m.superseded_at is null)
    select case when max(bytes) <= p_bytes then p_covers + 1 else coalesce(min(seq) filter (where bytes <= p_bytes
                                     and (is_request or (role = 'assistant' and seq > p_request
                                                         and before is distinct from 'assistant'))),
                    max(seq), p_covers + 1) end
    from newest
$$;

-- Read a context for p_shape, or for the conversation's own shape. A plain context is served as it is stored: `head`, then
-- `tail` or `sent`, messages to be joined. Otherwise `tail` is an array of [seq, role, content], and `sent` one of [seq,
-- message] with what came in the served shape. `shapes` has what the served shape depends on; it is null for most,
-- conversations of one model in the Messages API's shape, because each column has its cost.
create or replace function read_context(
    p_tenant uuid, p_conversation uuid, p_etag text, p_limits context_limits, p_policy text, p_inline_tags boolean,
    p_room integer, p_least_tokens integer, p_read_bytes integer, p_most_bytes integer,
    p_shape text,
    out etag text, out not_modified boolean, out plain boolean, out head text, out head_seqs integer[],
    out tail text, out head_version integer, out covers_through integer, out last_seq integer,
    out context_tokens integer, out measured_input_tokens integer, out result_cap integer,
    out strip_thinking_through integer, out pending_version integer, out policy text,
    out fixed_tokens integer, out factor double precision, out exchanges integer, out has_summary boolean,
    out gap boolean, out model text, out left_out text, out context_bytes bigint, out requested_output integer, out withheld boolean,
    out sent text, out shapes text
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
    v_shape text;
    v_served text;
    v_is_whole boolean;
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
    requested_output := c.requested_output;
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
        v_room := p_limits.total_token_budget
            - public.reserved_output(c.requested_output, p_limits.total_token_budget, p_limits.reserved_output_tokens)
            - ceil(fixed_tokens * factor)::integer;
    elsif v_room is null then
        v_room := coalesce((c.policy ->> 'total_token_budget')::integer, p_limits.total_token_budget)
            - public.reserved_output(
                c.requested_output, coalesce((c.policy ->> 'total_token_budget')::integer, p_limits.total_token_budget),
                coalesce((c.policy ->> 'reserved_output_tokens')::integer, p_limits.reserved_output_tokens))
            - ceil(fixed_tokens * factor)::integer;
    end if;
    gap := false;
    v_shape := coalesce(c.shape, 'messages');
    v_served := coalesce(p_shape, v_shape);
    -- Who gives a room is going to fit other layers beside the history, and needs the messages one by one.
    -- So do inline results: only a parser knows where they are.
    plain := p_room is null and c.broken_through <= c.covers_through
        and not case when c.policy ? 'inline_tool_tags' then jsonb_array_length(c.policy -> 'inline_tool_tags') > 0
                     else p_inline_tags end
        -- A snapshot is in the Messages API's shape, with what another model thought.
        and case when v_served = 'messages' then v_shape = 'messages' and not c.mixed_shapes
                                                 and (c.head_version = 0 or c.other_model_through = -1)
                 else c.head_version = 0 end;
    if c.context_tokens * factor > v_room or c.context_bytes > p_read_bytes then
        plain := false;
        select t.starts, t.request, t.answer, t.answered into v_starts, v_request, v_answer, v_answered
        from public.tail_window(p_conversation, c.covers_through, c.counted_cap, v_room, factor, p_least_tokens) as t;
        if c.context_bytes > p_read_bytes then
            v_starts := greatest(v_starts, public.tail_within(p_conversation, c.covers_through, (
                select max(m.seq) from public.messages as m
                where m.conversation_id = p_conversation and m.is_request and m.seq < v_answered
                  and m.superseded_at is null), p_read_bytes));
            -- What is read belongs to another request now.
            select coalesce(max(m.seq), v_request) into v_request from public.messages as m
            where m.conversation_id = p_conversation and m.is_request and m.seq > c.covers_through
              and m.seq <= least(v_starts, v_answered - 1) and m.superseded_at is null;
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
    if plain and v_served <> 'messages' then
        -- As it came, if all of it came so: then the messages' own texts are not read. Refused are reasoning alone by Chat
        -- Completions, reasoning that nothing follows yet by Responses.
        select string_agg(public.as_sent(m.role, m.content, m.sent), ',' order by m.seq),
               coalesce(bool_and(coalesce(m.shape = v_served, false)
                                 and not (m.has_thinking and (v_served = 'chat' or m.seq = c.next_seq - 1)
                                          and public.is_reasoning_alone(p_conversation, m.seq))
                                 and (m.result_chars is null or read_context.result_cap >= all (m.result_chars))
                                 and (not m.has_thinking or m.seq > c.strip_thinking_through)), true)
        into sent, plain
        from public.messages as m
        where m.conversation_id = p_conversation and m.superseded_at is null;
    elsif plain then
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
    if v_served = 'messages' then
        v_is_whole := v_shape = 'messages' and not c.mixed_shapes;
        if v_is_whole and c.other_model_through = -1 and c.rules is null then
            return;
        end if;
    elsif plain then
        v_is_whole := true;
    else
        -- What came in the served shape, of the messages that the head shows and of the tail, as [seq, message] in an array.
        select '[' || string_agg('[' || m.seq || ',' || public.as_sent(m.role, m.content, m.sent) || ']', ',' order by m.seq)
                          filter (where m.shape = v_served) || ']',
               coalesce(bool_and(coalesce(m.shape = v_served, false)) filter (where m.seq > c.covers_through), true)
        into sent, v_is_whole
        from public.messages as m
        where m.conversation_id = p_conversation and m.superseded_at is null
          and (m.seq > c.covers_through or m.seq = any (head_seqs));
    end if;
    shapes := json_build_object('shape', v_shape, 'is_whole', v_is_whole, 'other_model_through', c.other_model_through,
                                'rules', coalesce(c.rules, '[]'));
end $$;

-- Read what of a conversation's row a payload needs besides its context.
create or replace function read_beside_context(
    p_tenant uuid, p_conversation uuid, out id uuid, out system text, out tools text, out policy text, out model text,
    out shape text, out last_request integer, out in_loop boolean, out loop_has_thinking boolean, out fixed_tokens integer,
    out unstored_tokens integer, out carried_tokens integer, out turn_context_tokens integer
)
language plpgsql stable as $$
begin
    -- Called by itself, so that the setting ends with this statement's transaction.
    perform set_config('app.tenant_id', p_tenant::text, true);
    select c.id, c.system::text, c.tools::text, c.policy::text, c.model, c.shape, c.last_request, c.in_loop,
           c.loop_has_thinking, c.fixed_tokens, c.unstored_tokens, c.carried_tokens, c.turn_context_tokens
    into id, system, tools, policy, model, shape, last_request, in_loop, loop_has_thinking, fixed_tokens, unstored_tokens,
         carried_tokens, turn_context_tokens
    from public.conversations as c where c.id = p_conversation and c.tenant_id = p_tenant;
end $$;
