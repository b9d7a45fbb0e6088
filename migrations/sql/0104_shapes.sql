-- Messages of other shapes than the Messages API's, as they were sent. `messages.content` is what every step works on; what is
-- here is what was said, byte for byte, a row beside the message's. Conversations whose shape is null began with messages.
-- squawk-ignore-file require-concurrent-index-creation, adding-required-field, adding-field-with-default -- the table is new and
-- empty, and -1 is a constant
create table sent_messages (
    tenant_id uuid not null,
    conversation_id uuid not null,
    seq integer not null,
    shape text not null constraint ck_sent_messages_shape check (shape in ('chat', 'responses')),
    sent json not null,
    constraint pk_sent_messages primary key (conversation_id, seq)
);
-- Statistics outlive what they quote.
alter table sent_messages alter column sent set statistics 0;
alter table sent_messages enable row level security;
alter table sent_messages force row level security;
create policy tenant on sent_messages
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert on sent_messages to palimpsest_service;

-- Up to other_model_through another model answered than the present one: what it thought is for nobody else.
alter table conversations add column shape text, add column mixed_shapes boolean not null default false,
    add column other_model_through integer not null default -1;
alter table conversations add constraint ck_conversations_shape check (shape in ('chat', 'responses')) not valid;

-- Written like messages: by who holds the conversation, or is just making it, so that nothing is written of an erased one.
create function guard_sent_messages() returns trigger language plpgsql
set search_path = pg_catalog, public, pg_temp as $$
begin
    if tg_op = 'DELETE' and current_user = 'palimpsest_background'
        and current_setting('palimpsest.erasure', true) = old.conversation_id::text then
        return old;
    end if;
    raise exception 'sent messages are append-only' using errcode = 'restrict_violation';
end $$;
create trigger sent_messages_append_only before update or delete on sent_messages
    for each row execute function guard_sent_messages();
create trigger sent_messages_no_truncate before truncate on sent_messages
    for each statement execute function guard_snapshots();

create function forget_sent_messages() returns trigger language plpgsql
set search_path = pg_catalog, public, pg_temp as $$
begin
    perform set_config('palimpsest.erasure', new.id::text, true);
    delete from public.sent_messages as s where s.conversation_id = new.id;
    perform set_config('palimpsest.erasure', '', true);
    return new;
end $$;
create trigger conversations_forget_sent_messages after update of erased_at on conversations
    for each row when (new.erased_at is not null) execute function forget_sent_messages();
create policy background_erases on sent_messages to palimpsest_background using (true) with check (true);
grant select (conversation_id), delete on sent_messages to palimpsest_background;

-- Append a turn of another shape: append_turn with what the messages are to every step, and beside them p_sent, as they came.
create function append_sent_turn(
    p_shape text, p_sent json[],
    p_tenant uuid, p_conversation uuid, p_request uuid, p_expected_seq integer, p_replace_from integer,
    p_key text, p_body_hash bytea,
    p_messages turn_messages, p_facts turn_facts, p_usage turn_usage, p_context turn_context, p_limits context_limits,
    out outcome text, out first_seq integer, out last_seq integer, out context_tokens integer, out queued boolean
) language plpgsql as $$
begin
    select a.* into outcome, first_seq, last_seq, context_tokens, queued
    from public.append_turn(p_tenant, p_conversation, p_request, p_expected_seq, p_replace_from, p_key, p_body_hash,
                            p_messages, p_facts, p_usage, p_context, p_limits) as a;
    if outcome <> 'appended' then
        return;
    end if;
    insert into public.sent_messages (tenant_id, conversation_id, seq, shape, sent)
    select p_tenant, p_conversation, append_sent_turn.first_seq + m.place::integer - 1, p_shape, m.sent
    from unnest(p_sent) with ordinality as m (sent, place);
    if first_seq = 0 then
        update public.conversations as c set shape = p_shape where c.id = p_conversation;
    else
        update public.conversations as c set mixed_shapes = true
            where c.id = p_conversation and not c.mixed_shapes and c.shape is distinct from p_shape;
    end if;
end $$;

-- What of a context was sent in a shape, as [seq, message] in an array: what of the head's messages (p_head_seqs) and of the
-- tail after p_covers_through is in it. is_whole: the tail was sent in that shape and no other.
create function sent_of_context(
    p_conversation uuid, p_shape text, p_covers_through integer, p_head_seqs integer[], out sent text, out is_whole boolean
) language plpgsql stable as $$
begin
    select '[' || string_agg('[' || s.seq || ',' || s.sent::text || ']', ',' order by s.seq) || ']' into sent
    from public.sent_messages as s
        join public.messages as m on m.conversation_id = s.conversation_id and m.seq = s.seq and m.superseded_at is null
    where s.conversation_id = p_conversation and s.shape = p_shape
      and (s.seq > p_covers_through or s.seq = any (p_head_seqs));
    is_whole := not exists (
        select from public.messages as m
        where m.conversation_id = p_conversation and m.seq > p_covers_through and m.superseded_at is null
          and not exists (select from public.sent_messages as s
                          where s.conversation_id = p_conversation and s.seq = m.seq and s.shape = p_shape));
end $$;

-- Whether a message holds nothing but reasoning: an item of its own in Responses. That it is not shown once what it was signed
-- for has changed is said of all reasoning at once.
create function is_reasoning_alone(p_conversation uuid, p_seq integer) returns boolean language sql stable as $$
    select coalesce(bool_and(case when m.has_thinking then not exists (
            select from json_array_elements(m.content) as block
            where block ->> 'type' not in ('thinking', 'redacted_thinking')) else false end), false)
    from public.messages as m where m.conversation_id = p_conversation and m.seq = p_seq
$$;

-- read_context, and what of it was sent in the shape that is served (p_shape, or the conversation's own): of a plain context
-- its messages, to be joined, else an array of [seq, message]. shapes has the facts that the served shape depends on; it is
-- null for most, conversations of messages alone and of one model, served as such: every column of a row has its price.
create function read_context_in_shape(
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
        select string_agg(s.sent::text, ',' order by m.seq),
               coalesce(bool_and(s.seq is not null
                                 and not (m.has_thinking and (v_served = 'chat' or m.seq = c.next_seq - 1)
                                          and public.is_reasoning_alone(p_conversation, m.seq))
                                 and (m.result_chars is null or read_context_in_shape.result_cap >= all (m.result_chars))
                                 and (not m.has_thinking or m.seq > c.strip_thinking_through)), true)
        into sent, plain
        from public.messages as m
            left join public.sent_messages as s
                on s.conversation_id = m.conversation_id and s.seq = m.seq and s.shape = v_served
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

-- For processes of the release before this one.
create or replace function read_context(
    p_tenant uuid, p_conversation uuid, p_etag text, p_limits context_limits, p_policy text, p_inline_tags boolean,
    p_room integer, p_least_tokens integer, p_read_bytes integer, p_most_bytes integer,
    out etag text, out not_modified boolean, out plain boolean, out head text, out head_seqs integer[],
    out tail text, out head_version integer, out covers_through integer, out last_seq integer,
    out context_tokens integer, out measured_input_tokens integer, out result_cap integer,
    out strip_thinking_through integer, out pending_version integer, out policy text,
    out fixed_tokens integer, out factor double precision, out exchanges integer, out has_summary boolean,
    out gap boolean, out model text, out left_out text, out context_bytes bigint, out withheld boolean
) language sql stable as $$
    select r.etag, r.not_modified, r.plain, r.head, r.head_seqs, r.tail, r.head_version, r.covers_through, r.last_seq,
           r.context_tokens, r.measured_input_tokens, r.result_cap, r.strip_thinking_through, r.pending_version, r.policy,
           r.fixed_tokens, r.factor, r.exchanges, r.has_summary, r.gap, r.model, r.left_out, r.context_bytes, r.withheld
    from public.read_context_in_shape(p_tenant, p_conversation, p_etag, p_limits, p_policy, p_inline_tags, p_room,
                                      p_least_tokens, p_read_bytes, p_most_bytes, 'messages') as r
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
        left_out = s.left_out,
        revision = c.revision + 1
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
