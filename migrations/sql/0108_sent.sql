-- A message that came in another shape than the Messages API's has that shape in its own row, and how it was sent. A row beside
-- it, an index and a call of their own were a sixth of the cost of such a turn.
-- squawk-ignore-file ban-drop-table, ban-drop-function -- what the table has is taken over first, and its triggers go with it. All
-- of that while the messages are held: turns wait for as long as those of other shapes take to be written once more.
alter table messages add column shape text, add column sent json;
alter table messages alter column sent set statistics 0;
alter table messages add constraint ck_messages_shape
    check (coalesce(shape in ('chat', 'responses'), sent is null)) not valid;

-- A message as it was sent. Nothing is stored beside one that is no more than its role and its content.
create function as_sent(p_role text, p_content json, p_sent json) returns text language sql stable as $$
    select coalesce(p_sent::text, '{"role":"' || p_role || '","content":' || p_content::text || '}')
$$;

-- Whoever migrates owns the tables, sees their rows only so, and takes over what no service may change.
alter table messages no force row level security;
alter table sent_messages no force row level security;
alter table messages disable trigger messages_append_only;
update messages as m
set shape = s.shape, sent = case when s.sent::text <> public.as_sent(m.role, m.content, null) then s.sent end
from sent_messages as s where s.conversation_id = m.conversation_id and s.seq = m.seq;
alter table messages enable trigger messages_append_only;
alter table messages force row level security;

drop trigger conversations_forget_sent_messages on conversations;
drop function forget_sent_messages;
drop table sent_messages;
drop function guard_sent_messages;
-- For processes of the release before this one: they read the table, and copy into it what they fork or import.
create view sent_messages with (security_invoker = true) as
    select m.tenant_id, m.conversation_id, m.seq, m.shape, public.as_sent(m.role, m.content, m.sent)::json as sent
    from public.messages as m where m.shape is not null;
grant select, insert on sent_messages to palimpsest_service;
grant update (shape, sent) on messages to palimpsest_service;
create function write_sent_message() returns trigger language plpgsql
set search_path = pg_catalog, public, pg_temp as $$
begin
    update public.messages as m
    set shape = new.shape,
        sent = case when new.sent::text <> public.as_sent(m.role, m.content, null) then new.sent end
    where m.conversation_id = new.conversation_id and m.seq = new.seq and m.tenant_id = new.tenant_id;
    return new;
end $$;
create trigger sent_messages_are_messages instead of insert on sent_messages
    for each row execute function write_sent_message();

create or replace function guard_messages() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if tg_op = 'UPDATE' and old.superseded_at is null
        and row(new.tenant_id, new.conversation_id, new.seq, new.role, new.content::text, new.tokens,
                new.view_tokens, new.bytes, new.result_chars, new.is_request, new.has_thinking, new.created_at)
            is not distinct from
            row(old.tenant_id, old.conversation_id, old.seq, old.role, old.content::text, old.tokens,
                old.view_tokens, old.bytes, old.result_chars, old.is_request, old.has_thinking, old.created_at)
        -- What was sent may still be added by the transaction that wrote the message.
        and (row(new.shape, new.sent::text) is not distinct from row(old.shape, old.sent::text)
             or old.shape is null and old.xmin = pg_current_xact_id()::xid) then
        return new;
    end if;
    if tg_op = 'DELETE' and current_user = 'palimpsest_background'
        and current_setting('palimpsest.erasure', true) = old.conversation_id::text then
        return old;
    end if;
    raise exception 'messages are append-only' using errcode = 'restrict_violation';
end $$;

-- Append a turn: messages, counters, due check and idempotency key in one transaction and one round trip.
-- outcome: appended | replayed | other_body | out_of_order | beyond_end | missing. A count is carried on, and learned from,
-- by its parts. p_shape is that of the messages if it is another than the Messages API's, p_sent how each was sent, null for
-- one that is no more than its role and its content.
create function append_turn(
    p_tenant uuid, p_conversation uuid, p_request uuid, p_expected_seq integer, p_replace_from integer,
    p_key text, p_body_hash bytea,
    p_messages turn_messages, p_facts turn_facts, p_usage turn_usage, p_context turn_context, p_limits context_limits,
    p_shape text, p_sent json[],
    out outcome text, out first_seq integer, out last_seq integer, out context_tokens integer, out queued boolean
) language plpgsql as $$
declare
    v_count constant integer := cardinality(p_messages.roles);
    v_has_thinking constant boolean := true = any (p_messages.thinking);
    v_asks constant boolean := true = any (p_messages.requests[:p_facts.after_answer - 1]);
    v_total integer := p_facts.total_tokens;
    v_newer integer := p_facts.newer_tokens;
    v_cap integer;
    v_unlike_view boolean := false;
    v_samples real[];
    v_ratio real;
    v_unstored integer;
    v_last_count integer[];
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
    if p_facts.longest_result > 0 then
        -- Rare: only a turn with tool results has to know the cap before it can count.
        select coalesce(c.result_cap, p_limits.result_cap) into v_cap
            from public.conversations as c where c.id = p_conversation;
        if p_facts.longest_result > v_cap then
            v_total := v_total - public.tokens_over_cap(p_messages.result_chars, v_cap);
            v_newer := v_newer - public.tokens_over_cap(p_messages.result_chars[p_facts.after_answer + 1:], v_cap);
        end if;
    end if;
    if v_has_thinking then
        -- What was thought was signed for what the model saw. The view shows less than that of a long result in the same
        -- turn; and what had to be fitted into the budget need not be the next time.
        select exists (select from unnest(p_messages.result_chars, p_messages.hidden)
                           with ordinality as message (chars, hidden, place)
                       where (message.hidden > 0 or v_cap < any (message.chars::integer[]))
                         and true = any (p_messages.thinking[message.place + 1:]))
            or c.context_tokens * f.factor > coalesce((c.policy ->> 'total_token_budget')::integer, p_limits.total_token_budget)
                - coalesce((c.policy ->> 'reserved_output_tokens')::integer, p_limits.reserved_output_tokens)
                - ceil(c.fixed_tokens * f.factor) - c.unstored_tokens
        into v_unlike_view
        from public.conversations as c,
             lateral (select greatest(c.token_ratio, case when c.measured_version = c.head_version then
                          (c.measured_tokens - c.unstored_tokens)::double precision
                          / greatest(1, c.context_tokens + c.fixed_tokens + c.turn_context_tokens) end) as factor) as f
        where c.id = p_conversation;
    end if;

    if p_usage.input_tokens is not null and p_context.blocks is null then
        -- Nothing is learned where the call may have seen context blocks in a form that nobody told of. The row is not locked
        -- for this: of two counts that come at once one may be forgotten.
        select l.samples, l.ratio, l.unstored, l.last_count into v_samples, v_ratio, v_unstored, v_last_count
        from public.conversations as c,
             lateral public.learn_count(p_usage.input_tokens, c.context_tokens + c.fixed_tokens + p_facts.seen_tokens,
                                        c.ratio_samples, c.token_ratio, c.unstored_tokens, c.last_count) as l
        where c.id = p_conversation and (v_asks or c.turn_context_tokens = 0)
          and coalesce(p_usage.version = c.head_version, c.head_moved_at <> c.next_seq);
    end if;

    update public.conversations as c
    set next_seq = c.next_seq + v_count,
        turn_count = c.turn_count + 1,
        revision = c.revision + 1,
        context_tokens = c.context_tokens + v_total,
        context_messages = c.context_messages + v_count,
        context_bytes = c.context_bytes + p_facts.total_bytes,
        context_exchanges = c.context_exchanges + p_facts.exchanges,
        last_request = case when p_facts.last_request >= 0 then c.next_seq + p_facts.last_request else c.last_request end,
        newest_result = case when p_facts.newest_result >= 0 then c.next_seq + p_facts.newest_result else c.newest_result end,
        overflows = 0,
        turn_context_tokens = case when p_facts.has_request then 0 else c.turn_context_tokens end,
        -- A count belongs to the version it was made with. Without a version it is taken for the head's, unless the
        -- head moved since the last append: then nobody can say. What comes without a count that can be used carries the
        -- last one on, but for one that counted context blocks which the next request does not have in full.
        measured_tokens = case
            when p_usage.input_tokens is not null and coalesce(p_usage.version = c.head_version, c.head_moved_at <> c.next_seq)
            then p_usage.input_tokens + p_usage.output_tokens + v_newer
            when not p_facts.has_request or c.turn_context_tokens = 0 then c.measured_tokens + v_total end,
        measured_input_tokens = case
            when p_usage.input_tokens is not null and coalesce(p_usage.version = c.head_version, c.head_moved_at <> c.next_seq)
            then p_usage.input_tokens
            when not p_facts.has_request or c.turn_context_tokens = 0 then c.measured_input_tokens end,
        measured_version = case
            when p_usage.input_tokens is not null and coalesce(p_usage.version = c.head_version, c.head_moved_at <> c.next_seq)
            then c.head_version else c.measured_version end,
        measured_seq = case
            when p_usage.input_tokens is not null and coalesce(p_usage.version = c.head_version, c.head_moved_at <> c.next_seq)
            then c.next_seq + v_count else c.measured_seq end,
        ratio_samples = coalesce(v_samples, c.ratio_samples),
        token_ratio = coalesce(v_ratio, c.token_ratio),
        unstored_tokens = coalesce(v_unstored, c.unstored_tokens),
        last_count = coalesce(v_last_count, c.last_count),
        broken_through = case
            when p_facts.sound and c.open_calls = p_facts.leading_results
                and (c.context_messages > 0 or p_messages.roles[1] = 'user')
            then c.broken_through else c.next_seq + v_count - 1 end,
        open_calls = p_facts.trailing_calls,
        in_loop = p_facts.ends_in_loop,
        loop_has_thinking = p_facts.thinking_in_loop or (c.loop_has_thinking and not p_facts.has_request),
        strip_thinking_through = case
            when v_unlike_view
                or v_has_thinking and not coalesce(p_usage.version = c.head_version, c.head_moved_at <> c.next_seq)
            then c.next_seq + v_count - 1 else c.strip_thinking_through end,
        check_due_at = coalesce(c.check_due_at, now()),
        check_request_id = case when c.check_due_at is null then p_request else c.check_request_id end,
        counted_cap = coalesce(c.counted_cap, c.result_cap, p_limits.result_cap),
        shape = case when c.next_seq = 0 then p_shape else c.shape end,
        mixed_shapes = c.mixed_shapes or (c.next_seq > 0 and c.shape is distinct from p_shape)
    where c.id = p_conversation and c.tenant_id = p_tenant
      and (p_expected_seq is null or c.next_seq = p_expected_seq)
    returning c.next_seq as next_seq, c.check_due_at = now() as queued,
        c.in_loop and c.loop_has_thinking as needs_its_prefix,
        c.pending_version as pending_version, coalesce(c.result_cap, p_limits.result_cap) as cap,
        case when c.measured_tokens is not null and c.measured_version = c.head_version then c.measured_tokens
             else ceil((c.context_tokens + c.fixed_tokens) * c.token_ratio)::integer + c.unstored_tokens
             end as context_tokens
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
                                 result_chars, is_request, has_thinking, shape, sent)
    select p_tenant, p_conversation, v.next_seq - v_count + m.place::integer - 1, m.role, m.content, m.tokens,
           m.tokens - coalesce(p_messages.hidden[m.place], 0)
               - case when p_facts.longest_result <= v.cap or m.chars is null then 0
                      else public.tokens_over_cap(array[m.chars], v.cap) end,
           m.bytes, m.chars::integer[], m.request, m.thinking, p_shape, m.sent
    from unnest(p_messages.roles, p_messages.contents, p_messages.tokens, p_messages.bytes, p_messages.result_chars,
                p_messages.requests, p_messages.thinking, p_sent)
        with ordinality as m (role, content, tokens, bytes, chars, request, thinking, sent, place);
    if v.pending_version is not null and not v.needs_its_prefix then
        perform public.move_head(p_conversation, v.pending_version);
        select ceil((c.context_tokens + c.fixed_tokens) * c.token_ratio) + c.unstored_tokens into context_tokens
            from public.conversations as c where c.id = p_conversation;
    end if;
    if p_context.blocks is not null then
        perform public.add_context_blocks(
            p_tenant, p_conversation, p_request,
            case when p_facts.last_request >= 0 then v.next_seq - v_count + p_facts.last_request else v.next_seq - 1 end,
            p_context.blocks, p_context.carried_max_tokens, p_context.policy);
    end if;
    if p_key is not null then
        -- A concurrent request with the same key makes this fail; the caller asks again and gets the replay.
        insert into public.idempotency_keys (tenant_id, conversation_id, key, body_hash, first_seq, last_seq,
                                             context_tokens, queued)
        values (p_tenant, p_conversation, p_key, p_body_hash, v.next_seq - v_count, v.next_seq - 1,
                context_tokens, v.queued);
    end if;
end $$;

-- For processes of the release before this one.
create or replace function append_turn(
    p_tenant uuid, p_conversation uuid, p_request uuid, p_expected_seq integer, p_replace_from integer,
    p_key text, p_body_hash bytea,
    p_messages turn_messages, p_facts turn_facts, p_usage turn_usage, p_context turn_context, p_limits context_limits,
    out outcome text, out first_seq integer, out last_seq integer, out context_tokens integer, out queued boolean
) language sql as $$
    select * from public.append_turn(p_tenant, p_conversation, p_request, p_expected_seq, p_replace_from, p_key, p_body_hash,
                                     p_messages, p_facts, p_usage, p_context, p_limits, null, null)
$$;
create or replace function append_sent_turn(
    p_shape text, p_sent json[],
    p_tenant uuid, p_conversation uuid, p_request uuid, p_expected_seq integer, p_replace_from integer,
    p_key text, p_body_hash bytea,
    p_messages turn_messages, p_facts turn_facts, p_usage turn_usage, p_context turn_context, p_limits context_limits,
    out outcome text, out first_seq integer, out last_seq integer, out context_tokens integer, out queued boolean
) language sql as $$
    select * from public.append_turn(p_tenant, p_conversation, p_request, p_expected_seq, p_replace_from, p_key, p_body_hash,
                                     p_messages, p_facts, p_usage, p_context, p_limits, p_shape, p_sent)
$$;

-- What of a context was sent in a shape, as [seq, message] in an array: what of the head's messages (p_head_seqs) and of the
-- tail after p_covers_through is in it. is_whole: the tail was sent in that shape and no other.
create or replace function sent_of_context(
    p_conversation uuid, p_shape text, p_covers_through integer, p_head_seqs integer[], out sent text, out is_whole boolean
) language sql stable as $$
    select '[' || string_agg('[' || m.seq || ',' || public.as_sent(m.role, m.content, m.sent) || ']', ',' order by m.seq)
                      filter (where m.shape = p_shape) || ']',
           coalesce(bool_and(coalesce(m.shape = p_shape, false)) filter (where m.seq > p_covers_through), true)
    from public.messages as m
    where m.conversation_id = p_conversation and m.superseded_at is null
      and (m.seq > p_covers_through or m.seq = any (p_head_seqs))
$$;

create or replace function read_context_in_shape(
    p_tenant uuid, p_conversation uuid, p_etag text, p_limits context_limits, p_policy text, p_inline_tags boolean,
    p_room integer, p_least_tokens integer, p_read_bytes integer, p_most_bytes integer,
    p_shape text,
    out etag text, out not_modified boolean, out plain boolean, out head text, out head_seqs integer[],
    out tail text, out head_version integer, out covers_through integer, out last_seq integer,
    out context_tokens integer, out measured_input_tokens integer, out result_cap integer,
    out strip_thinking_through integer, out pending_version integer, out policy text,
    out fixed_tokens integer, out factor double precision, out exchanges integer, out has_summary boolean,
    out gap boolean, out model text, out left_out text, out context_bytes bigint, out withheld boolean,
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
    if plain and v_served <> 'messages' then
        -- As it came, if all of it came so: then the messages' own texts are not read. Refused are reasoning alone by Chat
        -- Completions, reasoning that nothing follows yet by Responses.
        select string_agg(public.as_sent(m.role, m.content, m.sent), ',' order by m.seq),
               coalesce(bool_and(coalesce(m.shape = v_served, false)
                                 and not (m.has_thinking and (v_served = 'chat' or m.seq = c.next_seq - 1)
                                          and public.is_reasoning_alone(p_conversation, m.seq))
                                 and (m.result_chars is null or read_context_in_shape.result_cap >= all (m.result_chars))
                                 and (not m.has_thinking or m.seq > c.strip_thinking_through)), true)
        into sent, plain
        from public.messages as m
        where m.conversation_id = p_conversation and m.superseded_at is null;
    elsif plain then
        select string_agg('{"role":"' || m.role || '","content":' || m.content::text || '}', ',' order by m.seq),
               coalesce(bool_and((m.result_chars is null or read_context_in_shape.result_cap >= all (m.result_chars))
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
        if v_is_whole and c.other_model_through = -1 then
            return;
        end if;
    elsif plain then
        v_is_whole := true;
    else
        select s.sent, s.is_whole into sent, v_is_whole
        from public.sent_of_context(p_conversation, v_served, covers_through, head_seqs) as s;
    end if;
    shapes := json_build_object('shape', v_shape, 'is_whole', v_is_whole, 'other_model_through', c.other_model_through);
end $$;

create or replace function gateway_recalls_of(p_tenant uuid, p_conversation uuid, p_covers integer, p_head_seqs integer[]) returns text
language plpgsql stable as $$
begin
    perform set_config('app.tenant_id', p_tenant::text, true);
    return (
        select '[' || string_agg('[' || r.seq || ',' || r.through_seq || ',' || coalesce(r.resent::text, 'null') || ','
                                 || r.shown || ',' || r.results || ',' || e.messages || ']', ',' order by r.seq) || ']'
        from public.gateway_recalls as r
            cross join lateral (
                select bool_or(m.superseded_at is not null) as superseded,
                       '[' || string_agg(case
                           when m.seq <= p_covers and m.seq <> all (p_head_seqs) then 'null'
                           else public.as_sent(m.role, m.content, m.sent)
                           end, ',' order by m.seq) || ']' as messages
                from public.messages as m
                where m.conversation_id = r.conversation_id and m.seq between r.seq and r.through_seq) as e
        where r.conversation_id = p_conversation and not e.superseded);
end $$;
