-- Store the context blocks of a turn whose request is message p_seq. A block of the same source is no longer carried over once
-- a newer one has come; then the oldest go until the rest has p_carried_max tokens. A block marked large gets a run that
-- summarizes it, one for each text, unless its text has a summary here or a run already; the summary goes to every block of
-- the conversation with that text.
create or replace function add_context_blocks(
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

-- Mark the messages from p_from on as superseded by an edit, and move the head back to the newest snapshot that has none of
-- them. If that is the present head, nothing before the edit has changed: signed thinking stays valid, holds stay if nearly
-- all of the context is left, and a move of the head since the last append is not forgotten.
create or replace function supersede(p_conversation uuid, p_from integer) returns void
language plpgsql as $$
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
    update public.conversations set edits = edits + 1 where id = p_conversation
        returning head_version, next_seq, strip_thinking_through, held_by_restore, tool_results_hold, summary_hold, trim_hold,
            pending_version, edits, context_tokens, head_moved_at
        into c;
    v_version := public.newest_version_below(p_conversation, p_from);
    perform public.move_head(p_conversation, v_version);
    perform public.recount_end(p_conversation);
    perform public.recount_carried(p_conversation);
    if v_version = c.head_version then
        -- Nothing before the messages that are left has changed: what was signed stays valid, what was restored restored.
        update public.conversations
            set strip_thinking_through = c.strip_thinking_through,
                -- Whoever read the context before it moved may not know of it yet.
                head_moved_at = case when c.head_moved_at = c.next_seq then c.next_seq else least(head_moved_at, p_from) end,
                pending_version = case when public.stands_before(id, c.pending_version, p_from) then c.pending_version end
            where id = p_conversation;
        update public.conversations
            set held_by_restore = c.held_by_restore, tool_results_hold = c.tool_results_hold, summary_hold = c.summary_hold,
                trim_hold = c.trim_hold
            where id = p_conversation and (c.held_by_restore or context_tokens >= 0.9 * c.context_tokens);
        update public.waiting_snapshots as w set edits = c.edits
            where w.conversation_id = p_conversation and w.edits = c.edits - 1
                and public.stands_before(w.conversation_id, w.version, p_from);
    end if;
end $$;

-- Enter what a turn adds to the ledger of rules: [{id, place, text, source, speaker, if_first}]. if_first: the entry counts only in
-- a conversation's first message, or only in others. A rule in force is not entered again; a withdrawal needs a detected rule.
-- A full ledger lets go of withdrawals, then of the oldest rules of whoever stated the most: they stay listed, as withdrawn.
create or replace function add_entries(
    p_tenant uuid, p_conversation uuid, p_request uuid, p_first_seq integer, p_entries jsonb
) returns void language plpgsql as $$
declare
    v_most constant integer := 200;
    v_rules constant jsonb := coalesce((select c.rules from public.conversations as c where c.id = p_conversation), '[]');
    v_is_first constant boolean := not exists (
        select from public.messages as m
        where m.conversation_id = p_conversation and m.seq < p_first_seq and m.superseded_at is null);
    v_entered integer;
begin
    insert into public.pins (id, tenant_id, conversation_id, seq, text, source, speaker, request_id)
    select e.id, p_tenant, p_conversation, p_first_seq + e.place, e.text, e.source, e.speaker, p_request
    from (select distinct on (r.text, r.source) r.*
          from jsonb_to_recordset(p_entries)
              as r (id uuid, place integer, text text, source text, speaker text, if_first boolean)
          where r.if_first is null or r.if_first = v_is_first
          order by r.text, r.source, r.place, r.id) as e
    where case when e.source = 'detected'
               then not exists (select from jsonb_array_elements(v_rules) as known where known ->> 2 = e.text)
               else exists (select from jsonb_array_elements(v_rules) as known where known ->> 3 = 'detected') end
    order by e.place, e.id
    limit v_most;
    get diagnostics v_entered = row_count;
    if v_entered > 0 and v_entered + jsonb_array_length(v_rules) > v_most then
        update public.pins set removed_at = now()
        where id in (
            select ranked.id
            from (select p.id, p.source, p.seq,
                         row_number() over (partition by p.speaker, p.source order by p.seq desc, p.id desc) as number
                  from public.pins as p
                      join public.messages as m
                          on m.conversation_id = p.conversation_id and m.seq = p.seq and m.superseded_at is null
                  where p.conversation_id = p_conversation and p.removed_at is null) as ranked
            order by ranked.source = 'pinned' desc, ranked.source = 'detected' desc, ranked.number, ranked.seq desc
            offset v_most);
    end if;
end $$;

-- Look for media that may explain a count which is larger than the messages can be: media may be larger than their estimate.
-- `place` is the last of the turn's messages with media, null for none; is_explained: that one, or one since the last count, has.
create or replace function explain_count(p_conversation uuid, p_contents json[], out place bigint, out is_explained boolean)
language plpgsql stable as $$
declare
    v_media constant text := '"(type|of)"\s*:\s*"(image|document|container_upload|audio|input_audio|file)"';
begin
    select max(m.place) into place from unnest(p_contents) with ordinality as m (content, place) where m.content::text ~ v_media;
    is_explained := place is not null or exists (
        select from public.conversations as c join public.messages as m on m.conversation_id = c.id
        where c.id = p_conversation and m.seq >= coalesce(c.measured_seq, 0) and m.superseded_at is null
          and m.content::text ~ v_media);
end $$;

-- Return how many tokens of a limit are kept free for an answer; compaction.policy.reserved_output says why.
create or replace function reserved_output(p_asked integer, p_limit integer, p_default integer) returns integer
language sql immutable return case when p_asked <= p_limit / 2.0 then p_asked else p_default end;

-- Return whether the thinking of a turn, which is signed for what the model saw, was written for anything else than the view: the
-- view cuts a long result of the same turn, and a history that was fitted into the budget may be fitted otherwise next time.
create or replace function is_unlike_view(
    p_conversation uuid, p_messages turn_messages, p_limits context_limits, p_cap integer
) returns boolean language sql stable as $$
    select exists (select from unnest(p_messages.result_chars, p_messages.hidden)
                       with ordinality as message (chars, hidden, place)
                   where (message.hidden > 0 or p_cap < any (message.chars::integer[]))
                     and true = any (p_messages.thinking[message.place + 1:]))
        or c.context_tokens * f.factor > coalesce((c.policy ->> 'total_token_budget')::integer, p_limits.total_token_budget)
            - public.reserved_output(
                c.requested_output, coalesce((c.policy ->> 'total_token_budget')::integer, p_limits.total_token_budget),
                coalesce((c.policy ->> 'reserved_output_tokens')::integer, p_limits.reserved_output_tokens))
            - ceil(c.fixed_tokens * f.factor) - c.unstored_tokens
    from public.conversations as c,
         lateral (select greatest(c.token_ratio, case when c.measured_version = c.head_version then
                      (c.measured_tokens - c.unstored_tokens)::double precision
                      / greatest(1, c.context_tokens + c.fixed_tokens + c.turn_context_tokens) end) as factor) as f
    where c.id = p_conversation
$$;

-- Append a turn: messages, counters, due check and idempotency key in one transaction and one round trip.
-- outcome: appended | replayed | other_body | out_of_order | beyond_end | missing. p_shape is the shape of the messages if it is
-- not the Messages API's, p_sent what is stored of each besides its content, see as_sent.
-- Null for most turns: p_entries, see add_entries; p_times, when each message was said; p_media, the media of messages, as
-- [{place, images, image_side, documents, document_pages, bytes}], places from 0.
create or replace function append_turn(
    p_tenant uuid, p_conversation uuid, p_request uuid, p_expected_seq integer, p_replace_from integer,
    p_key text, p_body_hash bytea,
    p_messages turn_messages, p_facts turn_facts, p_usage turn_usage, p_context turn_context, p_limits context_limits,
    p_shape text, p_sent json[], p_entries jsonb, p_times timestamptz[], p_media jsonb,
    out outcome text, out first_seq integer, out last_seq integer, out context_tokens integer, out queued boolean
) language plpgsql as $$
declare
    v_count constant integer := cardinality(p_messages.roles);
    v_has_thinking constant boolean := true = any (p_messages.thinking);
    v_total integer := p_facts.total_tokens;
    v_newer integer := p_facts.newer_tokens;
    v_cap integer;
    v_unlike_view boolean := false;
    v_samples real[];
    v_ratio real;
    v_unstored integer;
    v_last_count integer[];
    v_excess integer;
    v_media bigint;
    v_is_explained boolean;
    v record;
begin
    perform set_config('app.tenant_id', p_tenant::text, true);
    if p_key is not null then
        select case when k.body_hash = p_body_hash then 'replayed' else 'other_body' end, k.first_seq, k.last_seq,
               k.context_tokens, k.queued
        into outcome, first_seq, last_seq, context_tokens, queued
        from public.idempotency_keys as k where k.conversation_id = p_conversation and k.key = p_key;
        if found then
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
        v_unlike_view := public.is_unlike_view(p_conversation, p_messages, p_limits, v_cap);
    end if;
    if p_usage.input_tokens is not null and p_context.blocks is null then
        -- With context blocks nothing is learned: the call may have had them in another form. The row is not locked for this: of
        -- two counts that come at once, one may be forgotten.
        select l.samples, l.ratio, l.unstored, l.last_count,
               case when p_usage.input_tokens > l.unstored + 2 * e.estimated + 12000
                    then least(1000000, p_usage.input_tokens - l.unstored - ceil(l.ratio * e.estimated))::integer else 0 end
        into v_samples, v_ratio, v_unstored, v_last_count, v_excess
        from public.conversations as c,
             lateral (select c.context_tokens::bigint + c.fixed_tokens + p_facts.seen_tokens as estimated) as e,
             lateral public.learn_count(p_usage.input_tokens, e.estimated::integer, c.ratio_samples, c.token_ratio,
                                        c.unstored_tokens, c.last_count) as l
        where c.id = p_conversation
          and (c.turn_context_tokens = 0 or true = any (p_messages.requests[:p_facts.after_answer - 1]))
          and coalesce(p_usage.version = c.head_version, c.head_moved_at <> c.next_seq);
        if v_excess > 0 then
            -- Rare. A count that nothing explains is not believed. One that media explain teaches nothing about the rest.
            select e.place, e.is_explained into v_media, v_is_explained
            from public.explain_count(p_conversation, p_messages.contents[:p_facts.after_answer]) as e;
            if not v_is_explained then
                p_usage.input_tokens := null;
            else
                v_total := v_total + case when v_media is null then 0 else v_excess end;
                select null, null, null, null into v_samples, v_ratio, v_unstored, v_last_count;
            end if;
        end if;
    end if;

    update public.conversations as c
    set next_seq = c.next_seq + v_count,
        turn_count = c.turn_count + 1,
        revision = public.next_revision(c.revision),
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
        mixed_shapes = c.mixed_shapes or (c.next_seq > 0 and c.shape is distinct from p_shape),
        newest_media = case when p_media is null then c.newest_media else c.next_seq + v_count - 1 end,
        requested_output = coalesce(p_facts.requested_output, c.requested_output)
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
                                 result_chars, is_request, has_thinking, shape, sent, said_at, is_undated, request_id)
    select p_tenant, p_conversation, v.next_seq - v_count + m.place::integer - 1, m.role, m.content, m.tokens + m.excess,
           m.tokens + m.excess - coalesce(p_messages.hidden[m.place], 0)
               - case when p_facts.longest_result <= v.cap or m.chars is null then 0
                      else public.tokens_over_cap(array[m.chars], v.cap) end,
           m.bytes, m.chars::integer[], m.request, m.thinking, p_shape, m.sent,
           p_times[m.place], case when p_times[m.place] is null then p_times is not null or null end,
           case when m.place = 1 then p_request end
    from (select every.*, case when every.place = v_media then v_excess else 0 end as excess
          from unnest(p_messages.roles, p_messages.contents, p_messages.tokens, p_messages.bytes, p_messages.result_chars,
                      p_messages.requests, p_messages.thinking, p_sent)
              with ordinality as every (role, content, tokens, bytes, chars, request, thinking, sent, place)) as m;
    if p_media is not null then
        insert into public.message_media (tenant_id, conversation_id, seq, images, image_side, documents, document_pages, bytes)
        select p_tenant, p_conversation, v.next_seq - v_count + f.place, f.images, f.image_side, f.documents, f.document_pages,
               f.bytes
        from jsonb_to_recordset(p_media) as f (place integer, images integer, image_side integer, documents integer,
                                               document_pages integer, bytes bigint);
    end if;
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
    if p_entries is not null then
        perform public.add_entries(p_tenant, p_conversation, p_request, v.next_seq - v_count, p_entries);
    end if;
    if p_key is not null then
        -- A concurrent request with the same key makes this fail; the caller asks again and gets the replay.
        insert into public.idempotency_keys (tenant_id, conversation_id, key, body_hash, first_seq, last_seq,
                                             context_tokens, queued)
        values (p_tenant, p_conversation, p_key, p_body_hash, v.next_seq - v_count, v.next_seq - 1,
                context_tokens, v.queued);
    end if;
end $$;
