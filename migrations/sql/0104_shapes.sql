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

create trigger sent_messages_not_erased after insert on sent_messages for each row execute function guard_erased();
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

-- What of a context that was read was sent in a shape (p_shape, or the conversation's own), as [seq, message] in an array:
-- what of the head's messages (p_head_seqs) and of the tail after p_covers_through is in it. is_whole: the tail was sent in
-- that shape and no other. Nothing is read of a conversation of messages alone, served as such.
create function context_in_shape(
    p_tenant uuid, p_conversation uuid, p_shape text, p_covers_through integer, p_head_seqs integer[], p_is_read boolean,
    out shape text, out mixed_shapes boolean, out sent text, out is_whole boolean, out other_model_through integer
) language plpgsql stable as $$
declare
    v_served text;
begin
    if p_is_read is not true then
        return;
    end if;
    select coalesce(c.shape, 'messages'), c.mixed_shapes, c.other_model_through into shape, mixed_shapes, other_model_through
        from public.conversations as c where c.id = p_conversation and c.tenant_id = p_tenant;
    v_served := coalesce(p_shape, shape);
    if v_served = 'messages' then
        is_whole := shape = 'messages' and not mixed_shapes;
        return;
    end if;
    select '[' || string_agg('[' || s.seq || ',' || s.sent::text || ']', ',' order by s.seq) || ']' into sent
    from public.sent_messages as s
        join public.messages as m on m.conversation_id = s.conversation_id and m.seq = s.seq and m.superseded_at is null
    where s.conversation_id = p_conversation and s.shape = v_served
      and (s.seq > p_covers_through or s.seq = any (p_head_seqs));
    is_whole := not exists (
        select from public.messages as m
        where m.conversation_id = p_conversation and m.seq > p_covers_through and m.superseded_at is null
          and not exists (select from public.sent_messages as s
                          where s.conversation_id = p_conversation and s.seq = m.seq and s.shape = v_served));
end $$;

-- Whether a message holds nothing but reasoning: an item of its own in Responses. That it is not shown once what it was signed
-- for has changed is said of all reasoning at once.
create function is_reasoning_alone(p_conversation uuid, p_seq integer) returns boolean language sql stable as $$
    select coalesce(bool_and(case when m.has_thinking then not exists (
            select from json_array_elements(m.content) as block
            where block ->> 'type' not in ('thinking', 'redacted_thinking')) else false end), false)
    from public.messages as m where m.conversation_id = p_conversation and m.seq = p_seq
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
