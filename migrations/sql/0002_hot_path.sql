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

-- Store the context blocks of a turn whose request is message p_seq. A block that is already there, under the same source,
-- is no longer carried over once a newer one has come; the oldest give way until the rest has p_carried_max tokens.
-- Blocks marked large get a run that summarizes them, one for a text, unless it has been summarized here before or a run
-- is at it: a summary goes to every block of the conversation with that text.
create function add_context_blocks(
    p_tenant uuid, p_conversation uuid, p_request uuid, p_seq integer, p_blocks json, p_carried_max integer,
    p_policy jsonb
) returns void language plpgsql as $$
begin
    insert into public.context_blocks (id, tenant_id, conversation_id, seq, position, source, title, text, digest,
                                       outline, summary, summarized_at, tokens, outline_tokens)
    select b.id, p_tenant, p_conversation, p_seq, b.place::integer - 1, b.source,
           b.title, b.text, sha256(convert_to(b.text, 'UTF8')), b.outline, known.summary, known.summarized_at,
           b.tokens, b.outline_tokens
    from rows from (json_to_recordset(p_blocks) as (id uuid, source text, title text, text text, outline text,
                                                    tokens integer, outline_tokens integer))
        with ordinality as b (id, source, title, text, outline, tokens, outline_tokens, place)
        left join lateral (select o.summary, o.summarized_at from public.context_blocks as o
                           where o.conversation_id = p_conversation and o.summary is not null
                             and o.digest = sha256(convert_to(b.text, 'UTF8')) limit 1) as known on true;
    with live as (
        select b.id, b.outline_tokens, b.seq, b.position,
               row_number() over (partition by b.source order by b.seq desc, b.position desc) as nth
        from public.context_blocks as b
        where b.conversation_id = p_conversation and b.carried_until is null and b.superseded_at is null
    ), summed as (
        select id, nth, sum(case when nth = 1 then outline_tokens else 0 end) over (order by seq desc, position desc)
            as tokens
        from live
    )
    update public.context_blocks as b set carried_until = p_seq
    from summed where b.id = summed.id and (summed.nth > 1 or summed.tokens > p_carried_max);
    perform public.recount_carried(p_conversation);
    insert into public.runs (id, tenant_id, conversation_id, trigger, state, queue, policy, request_id, block_id)
    select distinct on (b.digest)
           r.run_id, p_tenant, p_conversation, 'context_block', 'queued', 'summaries', p_policy, p_request, b.id
    from json_to_recordset(p_blocks) as r (id uuid, run_id uuid)
        join public.context_blocks as b on b.id = r.id
    where r.run_id is not null and b.summary is null
      and not exists (select from public.context_blocks as o join public.runs as a on a.block_id = o.id
                      where o.conversation_id = p_conversation and o.digest = b.digest
                        and a.state in ('queued', 'running'));
end $$;

-- Tokens of a message in the view: as they were counted when it came, but those of tool results under the cap, which may
-- have changed since.
create function shown_tokens(p_tokens integer, p_view_tokens integer, p_result_chars integer[], p_cap integer)
returns integer language sql stable as $$
    select case when p_cap is null or p_result_chars is null then p_view_tokens
                else p_tokens - public.tokens_over_cap(array[p_result_chars::text], p_cap) end
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
    from (select (coalesce((select s.tokens from public.snapshots as s
                            where s.conversation_id = r.id and s.version = r.head_version), 0)
                  + coalesce((select sum(public.shown_tokens(m.tokens, m.view_tokens, m.result_chars, p_cap))
                              from public.messages as m
                              where m.conversation_id = r.id and m.seq > r.covers_through
                                and m.superseded_at is null), 0))::integer as tokens
          from public.conversations as r where r.id = p_conversation) as shown
    where c.id = p_conversation and c.context_tokens <> shown.tokens
$$;

-- Make a snapshot the head. The one place where the head moves: the counters are counted anew from the snapshot and
-- the tail, the API's token count is stale from here on, and so is signed thinking in what is stored already.
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
        revision = c.revision + 1
    from (select covers_through, tokens, message_count, bytes, exchanges from public.snapshots
          where conversation_id = p_conversation and version = p_version
          union all select -1, 0, 0, 0, 0 where p_version = 0) as s,
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

-- The newest snapshot that the head came from and that covers no message from p_from on, nor has a pin of one; 0 for none.
create or replace function newest_version_below(p_conversation uuid, p_from integer) returns integer
language sql stable as $$
    select coalesce(max(chain.version), 0)
    from public.conversations as c
        cross join lateral public.snapshot_chain(p_conversation, c.head_version) as chain
        join public.snapshots as s on s.conversation_id = p_conversation and s.version = chain.version
    where c.id = p_conversation and chain.covers_through < p_from
        and not exists (select from jsonb_array_elements(s.pins) as pin where (pin ->> 1)::integer >= p_from)
$$;

-- Take the messages from p_from on out of the context, and the context blocks that came with them. They stay stored; the
-- head goes back along its chain to the newest snapshot that covers none of them, and a run that was started on the old
-- prefix fails its compare-and-swap.
create or replace function supersede(p_conversation uuid, p_from integer) returns void language plpgsql as $$
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

-- As the function of revision 0001 with four arguments less, which services of that revision go on calling. p_hidden has the
-- tokens of each message that inline tool results hide in the view; null for none.
create function append_turn(
    p_tenant uuid, p_conversation uuid, p_request uuid,
    p_key text, p_body_hash bytea, p_expected_seq integer,
    p_roles text[], p_contents json[], p_tokens integer[], p_bytes integer[], p_result_chars text[],
    p_requests boolean[], p_thinking boolean[],
    p_total_tokens integer, p_newer_tokens integer, p_seen_tokens integer, p_total_bytes integer,
    p_longest_result integer, p_newest_result integer, p_result_cap integer,
    p_after_answer integer, p_sound boolean, p_leading text[], p_trailing text[],
    p_exchanges integer, p_last_request integer, p_has_request boolean, p_in_loop boolean,
    p_thinking_in_loop boolean, p_replace_from integer,
    p_input_tokens integer, p_output_tokens integer, p_version integer,
    p_hidden integer[], p_blocks json, p_carried_max integer, p_policy jsonb, p_total_budget integer, p_reserved integer,
    out outcome text, out first_seq integer, out last_seq integer, out context_tokens integer, out queued boolean
) language plpgsql as $$
declare
    v_count constant integer := cardinality(p_roles);
    v_has_thinking constant boolean := true = any (p_thinking);
    v_asks constant boolean := true = any (p_requests[:p_after_answer - 1]);
    v_total integer := p_total_tokens;
    v_newer integer := p_newer_tokens;
    v_cap integer;
    v_unlike_view boolean := false;
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
        select coalesce(c.result_cap, p_result_cap) into v_cap from public.conversations as c where c.id = p_conversation;
        if p_longest_result > v_cap then
            v_total := v_total - public.tokens_over_cap(p_result_chars, v_cap);
            v_newer := v_newer - public.tokens_over_cap(p_result_chars[p_after_answer + 1:], v_cap);
        end if;
    end if;
    if v_has_thinking then
        -- What was thought was signed for what the model saw. The view shows less than that of a long result in the same
        -- turn; and what had to be fitted into the budget need not be the next time.
        select exists (select from unnest(p_result_chars, p_hidden) with ordinality as message (chars, hidden, place)
                       where (message.hidden > 0 or v_cap < any (message.chars::integer[]))
                         and true = any (p_thinking[message.place + 1:]))
            or c.context_tokens * f.factor > coalesce((c.policy ->> 'total_token_budget')::integer, p_total_budget)
                - coalesce((c.policy ->> 'reserved_output_tokens')::integer, p_reserved) - ceil(c.fixed_tokens * f.factor)
        into v_unlike_view
        from public.conversations as c,
             lateral (select greatest(c.token_ratio, case when c.measured_version = c.head_version then
                          c.measured_tokens::double precision
                          / greatest(1, c.context_tokens + c.fixed_tokens + c.turn_context_tokens) end) as factor) as f
        where c.id = p_conversation;
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
        turn_context_tokens = case when p_has_request then 0 else c.turn_context_tokens end,
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
        -- A small estimate says little: what surrounds the messages outweighs them. And nothing is learned where the call
        -- may have seen context blocks in a form that nobody told of.
        ratio_samples = case
            when p_input_tokens is not null
                and coalesce(p_version = c.head_version, c.head_moved_at <> c.next_seq)
                and c.context_tokens + c.fixed_tokens + p_seen_tokens >= 500
                and p_blocks is null and (v_asks or c.turn_context_tokens = 0)
            then public.learn_ratio(c.ratio_samples, p_input_tokens,
                                    c.context_tokens + c.fixed_tokens + p_seen_tokens)
            else c.ratio_samples end,
        token_ratio = case
            when p_input_tokens is not null
                and coalesce(p_version = c.head_version, c.head_moved_at <> c.next_seq)
                and c.context_tokens + c.fixed_tokens + p_seen_tokens >= 500
                and p_blocks is null and (v_asks or c.turn_context_tokens = 0)
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
            when v_unlike_view
                or v_has_thinking and not coalesce(p_version = c.head_version, c.head_moved_at <> c.next_seq)
            then c.next_seq + v_count - 1 else c.strip_thinking_through end,
        check_due_at = coalesce(c.check_due_at, now()),
        check_request_id = case when c.check_due_at is null then p_request else c.check_request_id end,
        counted_cap = coalesce(c.counted_cap, c.result_cap, p_result_cap)
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
           m.tokens - coalesce(p_hidden[m.place], 0)
               - case when p_longest_result <= v.cap or m.chars is null then 0
                      else public.tokens_over_cap(array[m.chars], v.cap) end,
           m.bytes, m.chars::integer[], m.request, m.thinking
    from unnest(p_roles, p_contents, p_tokens, p_bytes, p_result_chars, p_requests, p_thinking)
        with ordinality as m (role, content, tokens, bytes, chars, request, thinking, place);
    if v.pending_version is not null and not v.needs_its_prefix then
        perform public.move_head(p_conversation, v.pending_version);
        select ceil((c.context_tokens + c.fixed_tokens) * c.token_ratio) into context_tokens from public.conversations as c
            where c.id = p_conversation;
    end if;
    if p_blocks is not null then
        perform public.add_context_blocks(
            p_tenant, p_conversation, p_request,
            case when p_last_request >= 0 then v.next_seq - v_count + p_last_request else v.next_seq - 1 end,
            p_blocks, p_carried_max, p_policy);
    end if;
    if p_key is not null then
        -- A concurrent request with the same key makes this fail; the caller asks again and gets the replay.
        insert into public.idempotency_keys (tenant_id, conversation_id, key, body_hash, first_seq, last_seq,
                                             context_tokens, queued)
        values (p_tenant, p_conversation, p_key, p_body_hash, v.next_seq - v_count, v.next_seq - 1,
                context_tokens, v.queued);
    end if;
end $$;

-- As the function of revision 0001, under the cap that was counted with last. p_last_request is the request of the last exchange.
create or replace function tail_start(
    p_conversation uuid, p_covers integer, p_last_request integer, p_room double precision, p_factor double precision
) returns integer language plpgsql stable as $$
declare
    v_cap constant integer := (select counted_cap from public.conversations where id = p_conversation);
    v_start integer;
    v_tokens double precision := 0;
    m record;
begin
    for m in select seq, role, is_request, tokens, view_tokens, result_chars, lead(role) over (order by seq desc) as before
             from public.messages
             where conversation_id = p_conversation and seq > p_covers and superseded_at is null
             order by seq desc loop
        v_tokens := v_tokens + p_factor * case
            when v_cap is null or m.result_chars is null then m.view_tokens
            else public.shown_tokens(m.tokens, m.view_tokens, m.result_chars, v_cap) end;
        exit when v_tokens > p_room and v_start is not null;
        -- Neighbouring assistant messages are one to the API, and their calls are answered together.
        if (m.is_request and m.seq <= p_last_request)
           or (m.role = 'assistant' and m.seq > p_last_request and m.before is distinct from 'assistant') then
            v_start := m.seq;
        end if;
    end loop;
    return coalesce(v_start, p_covers + 1);
end $$;

-- The request of a conversation's last exchange, -1 for none. What follows the last assistant message belongs to its exchange
-- where the newest message brings results, as in compaction/shorten/trimming.py.
create function exchange_request(p_conversation uuid, p_last_request integer, p_last_seq integer)
returns integer language sql stable
begin atomic
    select case when m.role = 'user' and m.result_chars is not null then coalesce((
        select r.seq from public.messages as r
        where r.conversation_id = p_conversation and r.is_request and r.superseded_at is null and r.seq < (
            select a.seq from public.messages as a
            where a.conversation_id = p_conversation and a.role = 'assistant' and a.superseded_at is null
            order by a.seq desc limit 1)
        order by r.seq desc limit 1), p_last_request) else p_last_request end
    from public.messages as m
    where m.conversation_id = p_conversation and m.seq = p_last_seq;
end;

-- As the function of revision 0001. p_inline_tags tells whether the tenant names inline tool tags: then no tail is passed on
-- unparsed. p_policy is a digest of the tenant's policy; the conversation's own changes with its revision.
create function read_context(
    p_tenant uuid, p_conversation uuid, p_etag text, p_result_cap integer,
    p_total_budget integer, p_reserved integer, p_room integer, p_inline_tags boolean, p_policy text,
    out etag text, out not_modified boolean, out plain boolean, out head text, out head_seqs integer[],
    out tail text, out head_version integer, out covers_through integer, out last_seq integer,
    out context_tokens integer, out measured_input_tokens integer, out result_cap integer,
    out strip_thinking_through integer, out pending_version integer, out policy text,
    out fixed_tokens integer, out factor double precision, out exchanges integer, out has_summary boolean,
    out gap boolean, out model text
) language plpgsql stable as $$
declare
    c record;
    v_room integer;
    v_start integer;
    v_request integer;
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
        v_request := public.exchange_request(p_conversation, c.last_request, last_seq);
        v_start := public.tail_start(p_conversation, c.covers_through, v_request, v_room, factor);
        gap := v_start > c.covers_through + 1;
    end if;
    if c.head_version > 0 then
        select s.messages::text, s.seqs, s.summary is not null or s.pins <> '[]' into head, head_seqs, has_summary
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
          and (v_start is null or m.seq >= v_start or m.seq = v_request);
    end if;
end $$;
