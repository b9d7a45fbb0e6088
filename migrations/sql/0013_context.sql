-- What was dropped without a summary is named in every context, until something else stands for it: "3-17, 20", null for
-- nothing. It changes with the head alone, so that reading a context costs nothing more.
alter table conversations add column left_out text;
alter table conversations alter column left_out set statistics 0;

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

-- As the function of revision 0009, which services of before go on calling.
create function read_context(
    p_tenant uuid, p_conversation uuid, p_etag text, p_result_cap integer,
    p_total_budget integer, p_reserved integer, p_room integer, p_inline_tags boolean, p_policy text, p_least_tokens integer,
    out etag text, out not_modified boolean, out plain boolean, out head text, out head_seqs integer[],
    out tail text, out head_version integer, out covers_through integer, out last_seq integer,
    out context_tokens integer, out measured_input_tokens integer, out result_cap integer,
    out strip_thinking_through integer, out pending_version integer, out policy text,
    out fixed_tokens integer, out factor double precision, out exchanges integer, out has_summary boolean,
    out gap boolean, out model text, out left_out text
) language plpgsql stable as $$
declare
    c record;
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
    result_cap := coalesce(c.result_cap, p_result_cap);
    etag := c.revision || '-' || p_policy;
    not_modified := p_room is null and etag is not distinct from p_etag;
    if not_modified then
        return;
    end if;
    head_version := c.head_version;
    covers_through := c.covers_through;
    last_seq := c.next_seq - 1;
    strip_thinking_through := c.strip_thinking_through;
    pending_version := c.pending_version;
    policy := c.policy::text;
    model := c.model;
    fixed_tokens := c.fixed_tokens;
    exchanges := c.context_exchanges;
    left_out := c.left_out;
    factor := c.token_ratio;
    context_tokens := ceil((c.context_tokens + c.fixed_tokens) * c.token_ratio)::integer;
    if c.measured_tokens is not null and c.measured_version = c.head_version then
        factor := greatest(factor, c.measured_tokens::double precision
                                   / greatest(1, c.context_tokens + c.fixed_tokens + c.turn_context_tokens));
        context_tokens := c.measured_tokens;
        measured_input_tokens := c.measured_input_tokens;
    end if;
    v_room := p_room;
    if v_room is null and (c.policy = '{}' or not c.policy ?| array['total_token_budget', 'reserved_output_tokens']) then
        v_room := p_total_budget - p_reserved - ceil(c.fixed_tokens * factor)::integer;
    elsif v_room is null then
        v_room := coalesce((c.policy ->> 'total_token_budget')::integer, p_total_budget)
            - coalesce((c.policy ->> 'reserved_output_tokens')::integer, p_reserved)
            - ceil(c.fixed_tokens * factor)::integer;
    end if;
    gap := false;
    -- Who gives a room is going to fit other layers beside the history, and needs the messages one by one.
    -- So do inline results: only a parser knows where they are.
    plain := p_room is null and c.broken_through <= c.covers_through
        and not case when c.policy ? 'inline_tool_tags' then jsonb_array_length(c.policy -> 'inline_tool_tags') > 0
                     else p_inline_tags end;
    if c.context_tokens * factor > v_room then
        plain := false;
        select t.starts, t.request, t.answer, t.answered into v_starts, v_request, v_answer, v_answered
        from public.tail_window(p_conversation, c.covers_through, c.counted_cap, v_room, factor, p_least_tokens) as t;
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
