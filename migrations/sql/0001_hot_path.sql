-- Tokens that the view cap hides in a turn's tool results: characters over the cap, at four a token, rounded for each
-- message by itself, so that the counter stays the sum of what is stored.
create function tokens_over_cap(p_result_chars text[], p_cap integer) returns integer language sql immutable as $$
    select coalesce(sum(hidden.chars / 4), 0)::integer
    from (select sum(greatest(0, each_result.chars - p_cap)) as chars
          from unnest(p_result_chars) with ordinality as message (list, place),
               unnest(message.list::integer[]) as each_result (chars)
          group by message.place) as hidden
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
        revision = c.revision + 1
    from (select covers_through, tokens, message_count, bytes, exchanges from public.snapshots
          where conversation_id = p_conversation and version = p_version
          union all select -1, 0, 0, 0, 0 where p_version = 0) as s,
         lateral (select coalesce(sum(m.view_tokens), 0)::integer as tokens, count(*)::integer as messages,
                         coalesce(sum(m.bytes), 0) as bytes,
                         (count(*) filter (where m.is_request))::integer as exchanges
                  from public.messages as m
                  where m.conversation_id = p_conversation and m.seq > s.covers_through
                    and m.superseded_at is null) as tail
    where c.id = p_conversation
$$;

-- The newest five ratios of counted to estimated tokens, each held within a factor of two.
create function learn_ratio(p_samples real[], p_counted integer, p_estimated integer) returns real[]
language sql immutable as $$
    select (p_samples || greatest(0.5, least(2, p_counted::real / p_estimated))::real)
           [greatest(1, cardinality(p_samples) - 3):]
$$;

create function median(p_values real[]) returns real language sql immutable as $$
    select percentile_cont(0.5) within group (order by value)::real from unnest(p_values) as value
$$;

-- Append a turn: messages, counters, due check and idempotency key in one transaction and one round trip.
-- outcome: appended | replayed | other_body | out_of_order | beyond_end | missing.
create function append_turn(
    p_tenant uuid, p_conversation uuid, p_request uuid,
    p_key text, p_body_hash bytea, p_expected_seq integer,
    p_roles text[], p_contents json[], p_tokens integer[], p_bytes integer[], p_result_chars text[],
    p_requests boolean[], p_thinking boolean[],
    p_total_tokens integer, p_newer_tokens integer, p_seen_tokens integer, p_total_bytes integer,
    p_longest_result integer, p_newest_result integer, p_result_cap integer,
    p_after_answer integer, p_sound boolean, p_leading text[], p_trailing text[],
    p_exchanges integer, p_last_request integer, p_has_request boolean, p_in_loop boolean, p_thinking_in_loop boolean, p_replace_from integer,
    p_input_tokens integer, p_output_tokens integer, p_version integer,
    out outcome text, out first_seq integer, out last_seq integer, out context_tokens integer, out queued boolean
) language plpgsql as $$
declare
    v_count constant integer := cardinality(p_roles);
    v_has_thinking constant boolean := true = any (p_thinking);
    v_total integer := p_total_tokens;
    v_newer integer := p_newer_tokens;
    v_stored record;
    v record;
begin
    perform set_config('app.tenant_id', p_tenant::text, true);
    if p_key is not null then
        select k.* into v_stored from public.idempotency_keys as k
            where k.conversation_id = p_conversation and k.key = p_key;
        if found then
            outcome := case when v_stored.body_hash = p_body_hash then 'replayed' else 'other_body' end;
            first_seq := v_stored.first_seq;
            last_seq := v_stored.last_seq;
            context_tokens := v_stored.context_tokens;
            queued := v_stored.queued;
            return;
        end if;
    end if;
    if p_replace_from is not null then
        -- Rare: an edit or a regenerated answer. What follows then appends to the shorter conversation.
        select c.next_seq as next_seq into v from public.conversations as c
            where c.id = p_conversation and c.tenant_id = p_tenant for no key update;
        if found and (p_expected_seq is null or v.next_seq = p_expected_seq) then
            if p_replace_from > v.next_seq then
                outcome := 'beyond_end';
                first_seq := v.next_seq;
                return;
            end if;
            perform public.supersede(p_conversation, p_replace_from);
        end if;
    end if;
    if p_longest_result > 0 then
        -- Rare: only a turn with tool results has to know the cap before it can count.
        select coalesce(c.result_cap, p_result_cap) as cap into v from public.conversations as c
            where c.id = p_conversation;
        if p_longest_result > v.cap then
            v_total := v_total - public.tokens_over_cap(p_result_chars, v.cap);
            v_newer := v_newer - public.tokens_over_cap(p_result_chars[p_after_answer + 1:], v.cap);
        end if;
    end if;

    update public.conversations as c
    set next_seq = c.next_seq + v_count,
        turn_count = c.turn_count + 1,
        revision = c.revision + 1,
        context_tokens = c.context_tokens + v_total,
        context_messages = c.context_messages + v_count,
        context_bytes = c.context_bytes + p_total_bytes,
        context_exchanges = c.context_exchanges + p_exchanges,
        last_request = case when p_last_request >= 0 then c.next_seq + p_last_request else c.last_request end,
        newest_result = case when p_newest_result >= 0 then c.next_seq + p_newest_result else c.newest_result end,
        overflows = 0,
        -- A count belongs to the version it was made with. Without a version it is taken for the head's, unless the
        -- head moved since the last append: then nobody can say. A new request without a count means no data.
        measured_tokens = case
            when p_input_tokens is null then
                case when p_has_request then null else c.measured_tokens + v_total end
            when coalesce(p_version = c.head_version, c.head_moved_at <> c.next_seq) then
                p_input_tokens + p_output_tokens + v_newer end,
        measured_input_tokens = case
            when p_input_tokens is null then
                case when p_has_request then null else c.measured_input_tokens end
            when coalesce(p_version = c.head_version, c.head_moved_at <> c.next_seq) then p_input_tokens end,
        -- A small estimate says little: what surrounds the messages outweighs them.
        ratio_samples = case
            when p_input_tokens is not null
                and coalesce(p_version = c.head_version, c.head_moved_at <> c.next_seq)
                and c.context_tokens + c.fixed_tokens + p_seen_tokens >= 500
            then public.learn_ratio(c.ratio_samples, p_input_tokens,
                                    c.context_tokens + c.fixed_tokens + p_seen_tokens)
            else c.ratio_samples end,
        token_ratio = case
            when p_input_tokens is not null
                and coalesce(p_version = c.head_version, c.head_moved_at <> c.next_seq)
                and c.context_tokens + c.fixed_tokens + p_seen_tokens >= 500
            then public.median(public.learn_ratio(c.ratio_samples, p_input_tokens,
                                                  c.context_tokens + c.fixed_tokens + p_seen_tokens))
            else c.token_ratio end,
        measured_version = case when p_input_tokens is null then c.measured_version else c.head_version end,
        broken_through = case
            when p_sound and c.open_calls = p_leading and (c.context_messages > 0 or p_roles[1] = 'user')
            then c.broken_through else c.next_seq + v_count - 1 end,
        open_calls = p_trailing,
        in_loop = p_in_loop,
        loop_has_thinking = p_thinking_in_loop or (c.loop_has_thinking and not p_has_request),
        strip_thinking_through = case
            when v_has_thinking and not coalesce(p_version = c.head_version, c.head_moved_at <> c.next_seq)
            then c.next_seq + v_count - 1 else c.strip_thinking_through end,
        check_due_at = coalesce(c.check_due_at, now()),
        check_request_id = case when c.check_due_at is null then p_request else c.check_request_id end
    where c.id = p_conversation and c.tenant_id = p_tenant
      and (p_expected_seq is null or c.next_seq = p_expected_seq)
    returning c.next_seq as next_seq, c.check_due_at = now() as queued,
        c.in_loop and c.loop_has_thinking as needs_its_prefix,
        c.pending_version as pending_version, coalesce(c.result_cap, p_result_cap) as cap,
        case when c.measured_tokens is not null and c.measured_version = c.head_version then c.measured_tokens
             else ceil((c.context_tokens + c.fixed_tokens) * c.token_ratio)::integer end as context_tokens
    into v;
    if not found then
        select c.next_seq as next_seq into v from public.conversations as c
            where c.id = p_conversation and c.tenant_id = p_tenant;
        outcome := case when found then 'out_of_order' else 'missing' end;
        first_seq := v.next_seq;
        return;
    end if;

    outcome := 'appended';
    first_seq := v.next_seq - v_count;
    last_seq := v.next_seq - 1;
    context_tokens := v.context_tokens;
    queued := v.queued;
    insert into public.messages (tenant_id, conversation_id, seq, role, content, tokens, view_tokens, bytes,
                                 result_chars, is_request, has_thinking)
    select p_tenant, p_conversation, v.next_seq - v_count + m.place::integer - 1, m.role, m.content, m.tokens,
           case when p_longest_result <= v.cap or m.chars is null then m.tokens
                else m.tokens - public.tokens_over_cap(array[m.chars], v.cap) end,
           m.bytes, m.chars::integer[], m.request, m.thinking
    from unnest(p_roles, p_contents, p_tokens, p_bytes, p_result_chars, p_requests, p_thinking)
        with ordinality as m (role, content, tokens, bytes, chars, request, thinking, place);
    if v.pending_version is not null and not v.needs_its_prefix then
        perform public.move_head(p_conversation, v.pending_version);
        select ceil((c.context_tokens + c.fixed_tokens) * c.token_ratio) into context_tokens from public.conversations as c
            where c.id = p_conversation;
    end if;
    if p_key is not null then
        -- A concurrent request with the same key makes this fail; the caller asks again and gets the replay.
        insert into public.idempotency_keys (tenant_id, conversation_id, key, body_hash, first_seq, last_seq,
                                             context_tokens, queued)
        values (p_tenant, p_conversation, p_key, p_body_hash, v.next_seq - v_count, v.next_seq - 1,
                context_tokens, v.queued);
    end if;
end $$;

-- Where a tail that has to fit into p_room tokens begins: at the oldest request, or round of the last exchange, from which
-- on it fits, but never after the newest round. Reads no content, and few rows older than the one it answers with.
create function tail_start(
    p_conversation uuid, p_covers integer, p_last_request integer, p_room double precision, p_factor double precision
) returns integer language plpgsql stable as $$
declare
    v_start integer;
    v_tokens double precision := 0;
    m record;
begin
    for m in select seq, role, is_request, view_tokens from public.messages
             where conversation_id = p_conversation and seq > p_covers and superseded_at is null
             order by seq desc loop
        v_tokens := v_tokens + m.view_tokens * p_factor;
        exit when v_tokens > p_room and v_start is not null;
        if m.is_request or (m.role = 'assistant' and m.seq > p_last_request) then
            v_start := m.seq;
        end if;
    end loop;
    return coalesce(v_start, p_covers + 1);
end $$;

-- Read the context. head and tail are JSON text to be joined; with plain = false the tail is an array of
-- [seq, role, content] and the caller has to cap, strip, repair or fit. Where the context is over its room (p_room, or
-- what the policy leaves), only the part of the tail that can fit is read, and the request it belongs to; gap tells
-- that older messages were left out. With a matching p_etag nothing is read.
create function read_context(
    p_tenant uuid, p_conversation uuid, p_etag text, p_result_cap integer,
    p_total_budget integer, p_reserved integer, p_room integer,
    out etag text, out not_modified boolean, out plain boolean, out head text, out head_seqs integer[],
    out tail text, out head_version integer, out covers_through integer, out last_seq integer,
    out context_tokens integer, out measured_input_tokens integer, out result_cap integer,
    out strip_thinking_through integer, out pending_version integer, out policy text,
    out fixed_tokens integer, out factor double precision, out exchanges integer, out has_summary boolean,
    out gap boolean
) language plpgsql stable as $$
declare
    c record;
    v_room integer;
    v_start integer;
begin
    -- Called by itself, so that the setting ends with this statement's transaction.
    perform set_config('app.tenant_id', p_tenant::text, true);
    select r.* into c from public.conversations as r where r.id = p_conversation and r.tenant_id = p_tenant;
    if not found then
        return;
    end if;
    result_cap := coalesce(c.result_cap, p_result_cap);
    etag := c.revision || '-' || result_cap;
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
    fixed_tokens := c.fixed_tokens;
    exchanges := c.context_exchanges;
    factor := c.token_ratio;
    context_tokens := ceil((c.context_tokens + c.fixed_tokens) * c.token_ratio)::integer;
    if c.measured_tokens is not null and c.measured_version = c.head_version then
        factor := greatest(factor, c.measured_tokens::double precision
                                   / greatest(1, c.context_tokens + c.fixed_tokens));
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
    plain := p_room is null and c.broken_through <= c.covers_through;
    if c.context_tokens * factor > v_room then
        plain := false;
        v_start := public.tail_start(p_conversation, c.covers_through, c.last_request, v_room, factor);
        gap := v_start > c.covers_through + 1;
    end if;
    if c.head_version > 0 then
        select s.messages::text, s.seqs, s.summary is not null into head, head_seqs, has_summary
        from public.snapshots as s where s.conversation_id = p_conversation and s.version = c.head_version;
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
          and (v_start is null or m.seq >= v_start or m.seq = c.last_request);
    end if;
end $$;
