-- What of a tail is read to fill a room: everything from `starts` on, which is the newest rounds that fit and the one before
-- them, to be cut; the `request` that they belong to; and the newest answer (`answer` to `answered`, neighbouring assistant
-- messages are one to the API) with the results it got. Unanswered messages never take its place, and may be shortened to
-- p_least_tokens a message before any of them is left out.
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
