-- Return snapshot p_version as it is shown, with the estimated tokens of all that it covers. With p_below, it is the newest
-- one on the way to the head that neither shows nor covers anything from message p_below on.
create or replace function gateway_head(
    p_tenant uuid, p_conversation uuid, p_version integer, p_below integer default null,
    out version integer, out covers_through integer, out head text, out head_seqs integer[], out head_tokens integer,
    out covered_tokens bigint
) language plpgsql stable as $$
declare
    v_follows integer[];
begin
    perform set_config('app.tenant_id', p_tenant::text, true);
    if p_below is not null then
        p_version := public.newest_version_below(p_conversation, p_below);
    end if;
    select s.version, s.covers_through, s.seqs, s.tokens, s.follows,
           case when s.follows = '{}' then coalesce(s.messages::text, s.part || ']') end
    into version, covers_through, head_seqs, head_tokens, v_follows, head
    from public.snapshot_parts as s where s.conversation_id = p_conversation and s.version = p_version;
    if not found then
        return;
    end if;
    if v_follows <> '{}' then
        select string_agg(case when p.version = p_version then p.part || ']' else p.part end, '') into head
        from (select s.version, s.part from public.snapshot_parts as s
              where s.conversation_id = p_conversation and s.version between v_follows[1] and p_version
                  and s.version = any (v_follows || p_version)
              order by s.version) as p;
    end if;
    select coalesce(sum(m.tokens), 0) into covered_tokens from public.messages as m
        where m.conversation_id = p_conversation and m.seq <= gateway_head.covers_through and m.superseded_at is null;
end $$;

-- Return the answers within which recall was answered, as far as they are in force: [seq, through_seq, resent, shown, results,
-- messages]. Messages are as the model gets them; null for those that a head through p_covers covers and does not show by
-- p_head_seqs.
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

-- Find the conversation whose stored history is the longest beginning of a request's. p_keys are the keys of the request's
-- beginnings, the shortest first; p_only restricts the search to one conversation. Messages stored after that beginning come
-- with it, p_rows at most, and the head. A beginning that an edit has superseded is found if no other conversation has it.
-- Without keys, it is the conversation p_only or p_external_id from its first message on, if no gateway has stored in it.
create or replace function gateway_find(
    p_tenant uuid, p_keys bytea[], p_only uuid, p_rows integer, p_external_id text,
    out place integer, out conversation_id uuid, out seq integer, out is_superseded boolean, out next_seq integer,
    out after text, out removed integer[], out strip_thinking_through integer, out broken_through integer,
    out policy text, out model text,
    out version integer, out covers_through integer, out head text, out head_seqs integer[], out head_tokens integer,
    out covered_tokens bigint, out recalls text
) language plpgsql stable as $$
declare
    c record;
begin
    perform set_config('app.tenant_id', p_tenant::text, true);
    if p_keys = '{}' then
        select 0, r.id, -1, false into place, conversation_id, seq, is_superseded
        from public.conversations as r
        where r.tenant_id = p_tenant and (r.id = p_only or r.external_id = p_external_id)
            and not exists (select from public.gateway_prefixes as p where p.conversation_id = r.id)
        limit 1;
    else
        select k.place, f.conversation_id, f.seq, f.is_superseded
        into place, conversation_id, seq, is_superseded
        from (select each.key, each.place::integer as place
              from unnest(p_keys) with ordinality as each (key, place) order by each.place::integer desc) as k
            cross join lateral (
                select n.conversation_id, n.seq, m.superseded_at is not null as is_superseded
                from (select p.conversation_id, p.seq from public.gateway_prefixes as p
                      where p.tenant_id = p_tenant and p.key = k.key and (p_only is null or p.conversation_id = p_only)
                      order by p.conversation_id desc limit 8) as n
                    join public.messages as m on m.conversation_id = n.conversation_id and m.seq = n.seq
                order by m.superseded_at is not null, n.conversation_id desc limit 1) as f
        order by k.place desc limit 1;
    end if;
    if place is null or is_superseded then
        return;
    end if;
    select r.* into c from public.conversations as r where r.id = gateway_find.conversation_id;
    next_seq := c.next_seq;
    strip_thinking_through := c.strip_thinking_through;
    broken_through := c.broken_through;
    policy := c.policy::text;
    model := c.model;
    select '[' || string_agg('[' || m.seq || ',"' || m.role || '",' || m.content::text || ']', ',' order by m.seq) || ']'
    into after
    from (select o.seq, o.role, o.content from public.messages as o
          where o.conversation_id = gateway_find.conversation_id and o.seq > gateway_find.seq and o.superseded_at is null
          order by o.seq limit p_rows) as m;
    if c.edits > 0 then
        select array_agg(m.seq order by m.seq) into removed from public.messages as m
            where m.conversation_id = gateway_find.conversation_id and m.superseded_at is not null;
    end if;
    if c.head_version > 0 then
        select h.* into version, covers_through, head, head_seqs, head_tokens, covered_tokens
        from public.gateway_head(p_tenant, c.id, c.head_version) as h;
    end if;
    if exists (select from public.gateway_recalls as r where r.conversation_id = c.id) then
        recalls := public.gateway_recalls_of(p_tenant, c.id, coalesce(covers_through, -1), coalesce(head_seqs, '{}'));
    end if;
end $$;

-- Return what a client's id of an answer stands for at the provider, and the results of recalls that the client does not have.
create or replace function gateway_response(p_tenant uuid, p_id text, out last_response_id text, out results text)
language plpgsql stable as $$
begin
    perform set_config('app.tenant_id', p_tenant::text, true);
    select r.last_response_id, r.results::text into last_response_id, results from (
            select a.* from public.gateway_recalls as a
            where a.tenant_id = p_tenant and a.response_id = p_id offset 0) as r
        order by r.conversation_id desc, r.seq desc limit 1;
end $$;

-- Begin a conversation, or take the one that is named by id or external id if it is empty. If the named one has another
-- history, the new one is a branch of it. If none is named, it is a branch of the newest conversation of its circle with more
-- than one request, if the circle is a session's.
create or replace function gateway_begin(
    p_tenant uuid, p_id uuid, p_named uuid, p_external_id text, p_user_ref text, p_model text, p_metadata jsonb,
    p_circle bytea, p_in_session boolean, p_branch_of uuid
) returns uuid language plpgsql as $$
declare
    v_named record;
    v_branch_of uuid := p_branch_of;
begin
    perform set_config('app.tenant_id', p_tenant::text, true);
    select c.id, c.next_seq into v_named from public.conversations as c
        where c.tenant_id = p_tenant and (c.id = p_named or c.external_id = p_external_id) limit 1;
    if found and v_named.next_seq = 0 then
        insert into public.gateway_conversations (conversation_id, tenant_id, circle)
        values (v_named.id, p_tenant, p_circle) on conflict do nothing;
        return v_named.id;
    end if;
    if v_branch_of is null and found then
        v_branch_of := v_named.id;
    end if;
    if v_branch_of is null and p_in_session then
        select g.conversation_id into v_branch_of from public.gateway_conversations as g
            cross join lateral (
                select count(*) as requests, max(p.answered_at) as last from public.gateway_prefixes as p
                where p.conversation_id = g.conversation_id and p.answered_at is not null) as answered
            where g.tenant_id = p_tenant and g.circle = p_circle and answered.requests > 1
            order by answered.last desc limit 1;
    end if;
    insert into public.conversations (id, tenant_id, external_id, user_ref, model, metadata)
    values (p_id, p_tenant, case when v_named.id is null then p_external_id end, p_user_ref, p_model,
            case when v_branch_of is null then p_metadata
                 else jsonb_set(p_metadata, '{gateway,branch_of}',
                                to_jsonb('conv_' || replace(v_branch_of::text, '-', ''))) end)
    on conflict do nothing;
    if not found then
        -- Somebody else has made one of that name meanwhile.
        insert into public.conversations (id, tenant_id, user_ref, model, metadata)
        values (p_id, p_tenant, p_user_ref, p_model, p_metadata);
    end if;
    insert into public.gateway_conversations (conversation_id, tenant_id, circle, branch_of)
    values (p_id, p_tenant, p_circle, v_branch_of);
    return p_id;
end $$;

-- Store the keys by which messages p_seqs are recognized and, at the last of them, the outcome of the request. p_recalls are
-- answers within which recall was answered, as in gateway_recalls_of, without messages.
create or replace function gateway_note(
    p_tenant uuid, p_conversation uuid, p_seqs integer[], p_keys bytea[], p_last integer, p_outcome text, p_saved integer,
    p_version integer, p_retried boolean, p_aborted boolean, p_recalls json
) returns void language plpgsql as $$
begin
    perform set_config('app.tenant_id', p_tenant::text, true);
    insert into public.gateway_prefixes (tenant_id, conversation_id, seq, key)
    select p_tenant, p_conversation, n.seq, n.key from unnest(p_seqs, p_keys) as n (seq, key)
    on conflict on constraint pk_gateway_prefixes do update set key = excluded.key;
    update public.gateway_prefixes as p
    set outcome = p_outcome, saved_tokens = p_saved, head_version = p_version, retried = p_retried, aborted = p_aborted,
        answered_at = now()
    where p.conversation_id = p_conversation and p.seq = p_last;
    insert into public.gateway_recalls (tenant_id, conversation_id, seq, through_seq, resent, shown, results,
        response_id, last_response_id)
    select p_tenant, p_conversation, (r.value ->> 0)::integer, (r.value ->> 1)::integer, (r.value ->> 2)::integer,
           r.value -> 3, r.value -> 4, r.value ->> 5, r.value ->> 6
    from json_array_elements(p_recalls) as r
    on conflict on constraint pk_gateway_recalls do update set resent = excluded.resent;
end $$;
