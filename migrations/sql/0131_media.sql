-- squawk-ignore-file adding-field-with-default -- a constant
-- What a check knows of images and files: of each message in force that has any, and of each snapshot. Nothing is written, and
-- nothing read, for a message or a conversation without.
create table message_media (
    tenant_id uuid not null,
    conversation_id uuid not null,
    seq integer not null,
    images integer not null,
    image_side integer not null,
    documents integer not null,
    document_pages integer not null,
    bytes bigint not null,
    constraint pk_message_media primary key (conversation_id, seq),
    constraint fk_message_media_conversation_id_conversations foreign key (conversation_id) references conversations (id)
);
alter table message_media enable row level security;
alter table message_media force row level security;
create policy tenant on message_media using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background on message_media to palimpsest_background using (true) with check (true);
grant select, insert on message_media to palimpsest_service;
grant select, delete on message_media to palimpsest_background;
grant select (superseded_at) on messages to palimpsest_background;
create trigger message_media_not_erased after insert on message_media for each row execute function guard_erased();

-- newest_media is the seq of the newest message with media, -1 for none; media_checked_through that of the newest message which
-- a run has looked at: only later media ask for another run.
alter table conversations
    add column newest_media integer not null default -1,
    add column media_checked_through integer not null default -1;
grant select (covers_through, newest_media, media_checked_through) on conversations to palimpsest_background;

-- Media of edited and erased messages are in no context any more; services may delete nothing themselves. A head that has gone
-- back may show more of them.
create function forget_media() returns trigger language plpgsql
security definer set search_path = pg_catalog, public, pg_temp as $$
begin
    if new.erased_at is not null then
        delete from public.message_media as f where f.conversation_id = new.id;
    elsif new.edits <> old.edits then
        delete from public.message_media as f
        using public.messages as m
        where f.conversation_id = new.id and m.conversation_id = f.conversation_id and m.seq = f.seq
          and m.superseded_at is not null;
    end if;
    if new.head_version < old.head_version then
        new.media_checked_through := -1;
    end if;
    return new;
end $$;
create trigger conversations_forget_media before update of edits, head_version, erased_at on conversations
    for each row when (old.newest_media >= 0) execute function forget_media();

-- append_turn_at for messages with media: [{place, images, image_side, documents, document_pages, bytes}], places from 0.
create function append_turn_with_media(
    p_media jsonb, p_times timestamptz[], p_entries jsonb,
    p_tenant uuid, p_conversation uuid, p_request uuid, p_expected_seq integer, p_replace_from integer,
    p_key text, p_body_hash bytea,
    p_messages turn_messages, p_facts turn_facts, p_usage turn_usage, p_context turn_context, p_limits context_limits,
    p_shape text, p_sent json[],
    out outcome text, out first_seq integer, out last_seq integer, out context_tokens integer, out queued boolean
) language plpgsql as $$
begin
    select a.* into outcome, first_seq, last_seq, context_tokens, queued
    from public.append_turn_at(p_times, p_entries, p_tenant, p_conversation, p_request, p_expected_seq, p_replace_from,
                               p_key, p_body_hash, p_messages, p_facts, p_usage, p_context, p_limits, p_shape,
                               p_sent) as a;
    if outcome <> 'appended' then
        return;
    end if;
    insert into public.message_media (tenant_id, conversation_id, seq, images, image_side, documents, document_pages, bytes)
    select p_tenant, p_conversation, append_turn_with_media.first_seq + f.place, f.images, f.image_side, f.documents,
           f.document_pages, f.bytes
    from jsonb_to_recordset(p_media) as f (place integer, images integer, image_side integer, documents integer,
                                           document_pages integer, bytes bigint);
    update public.conversations as c set newest_media = append_turn_with_media.last_seq where c.id = p_conversation;
end $$;

-- The same five figures of a snapshot's messages together, null where they are not known.
alter table snapshot_parts add column media bigint[];
grant select (media) on snapshot_parts to palimpsest_background;

create or replace view snapshots with (security_invoker = true) as
select p.tenant_id, p.conversation_id, p.version, p.parent_version, p.run_id, p.step, p.covers_through,
       coalesce(p.messages, (coalesce((
           select string_agg(earlier.part, '')
           from (select e.part from public.snapshot_parts as e
                 where e.conversation_id = p.conversation_id and e.version between p.follows[1] and p.version
                     and e.version = any (p.follows)
                 order by e.version) as earlier), '') || p.part || ']')::json) as messages,
       p.seqs, p.coverage, p.summary, p.summarizer, p.tokens, p.message_count, p.bytes, p.exchanges, p.prefix_hash,
       p.created_at, p.pins, p.claims, p.media
from public.snapshot_parts as p;

create or replace function store_snapshot() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    v_longest constant integer := 16;
    v_part text := left(rtrim(new.messages::text, E' \t\n\r'), -1);
    v_before text;
    v_follows integer[];
begin
    if json_typeof(new.messages) <> 'array' then
        raise exception 'the messages of a snapshot are an array' using errcode = 'check_violation';
    end if;
    select left(s.messages::text, -1), p.follows || p.version into v_before, v_follows
    from public.snapshot_parts as p
        join public.snapshots as s on s.conversation_id = p.conversation_id and s.version = p.version
    where p.conversation_id = new.conversation_id and p.version = new.parent_version and p.part is not null
        and cardinality(p.follows) < v_longest;
    if starts_with(v_part, v_before || ',') then
        v_part := substr(v_part, length(v_before) + 1);
    else
        v_follows := '{}';
    end if;
    insert into public.snapshot_parts (
        tenant_id, conversation_id, version, parent_version, run_id, step, covers_through, part, follows, seqs, coverage,
        summary, summarizer, tokens, message_count, bytes, exchanges, prefix_hash, created_at, pins, claims, media)
    values (
        new.tenant_id, new.conversation_id, new.version, new.parent_version, new.run_id, new.step, new.covers_through, v_part,
        v_follows, new.seqs, new.coverage, new.summary, new.summarizer, new.tokens, new.message_count, new.bytes,
        new.exchanges, new.prefix_hash, new.created_at, new.pins, new.claims, new.media);
    return new;
end $$;

-- What due_states tells, and `media`: what the context has of images and files, in the order of message_media's columns; null
-- where no media came since a run looked at them.
create function due_states_with_media(p_conversations uuid[], p_lock boolean) returns table (
    conversation_id uuid, tenant_id uuid, tenant_policy jsonb, policy jsonb, model text, revision bigint,
    estimated integer, measured integer, context_bytes bigint, has_old_results boolean,
    tool_results_hold integer, summary_hold integer, trim_hold integer,
    pending_version integer, has_active_run boolean, counted_cap integer,
    stored integer, is_counted boolean, media bigint[]
) language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
begin
    if p_lock then
        perform set_config('lock_timeout', case when cardinality(p_conversations) > 1 then '200ms' else '2s' end, true);
        perform from public.conversations as c where c.id = any (p_conversations) order by c.id for no key update;
    end if;
    return query
    select c.id, c.tenant_id, t.policy, c.policy, c.model, c.revision,
           least(2147483647, ceil((c.context_tokens::bigint + c.fixed_tokens) * c.token_ratio)
                             + c.unstored_tokens)::integer,
           case when c.measured_version = c.head_version then c.measured_tokens end,
           c.context_bytes, c.newest_result > c.results_cut_through,
           c.tool_results_hold, c.summary_hold, c.trim_hold, c.pending_version,
           exists (select from public.runs as r
                   where r.conversation_id = c.id and r.state in ('queued', 'running') and r.block_id is null),
           c.counted_cap, least(2147483647, c.context_tokens::bigint + c.fixed_tokens)::integer, c.last_request < c.measured_seq,
           case when c.newest_media > c.media_checked_through then (
               select array[coalesce(sum(m.images), 0), coalesce(max(m.image_side), 0), coalesce(sum(m.documents), 0),
                            coalesce(sum(m.document_pages), 0), coalesce(sum(m.bytes), 0)]::bigint[]
               from (select f.images, f.image_side, f.documents, f.document_pages, f.bytes
                     from public.message_media as f
                     where f.conversation_id = c.id and f.seq > c.covers_through
                     union all
                     select s.media[1], s.media[2], s.media[3], s.media[4], s.media[5]
                     from public.snapshot_parts as s
                     where s.conversation_id = c.id and s.version = c.head_version) as m) end
    from public.conversations as c join public.tenants as t on t.id = c.tenant_id
    where c.id = any (p_conversations) and (c.check_due_at is null) is false;
end $$;

-- A new owner needs the right to create in the schema at the moment of the change.
grant create on schema public to palimpsest_background;
alter function due_states_with_media owner to palimpsest_background;
alter function forget_media owner to palimpsest_background;
revoke create on schema public from palimpsest_background;
revoke execute on function due_states_with_media, forget_media from public;
grant execute on function due_states_with_media to palimpsest_service;

-- For code of the release before.
create or replace function due_states(p_conversations uuid[], p_lock boolean) returns table (
    conversation_id uuid, tenant_id uuid, tenant_policy jsonb, policy jsonb, model text, revision bigint,
    estimated integer, measured integer, context_bytes bigint, has_old_results boolean,
    tool_results_hold integer, summary_hold integer, trim_hold integer,
    pending_version integer, has_active_run boolean, counted_cap integer,
    stored integer, is_counted boolean
) language sql security definer set search_path = pg_catalog, public, pg_temp as $$
    select d.conversation_id, d.tenant_id, d.tenant_policy, d.policy, d.model, d.revision, d.estimated,
           d.measured, d.context_bytes, d.has_old_results, d.tool_results_hold, d.summary_hold, d.trim_hold,
           d.pending_version, d.has_active_run, d.counted_cap, d.stored, d.is_counted
    from public.due_states_with_media(p_conversations, p_lock) as d
$$;
