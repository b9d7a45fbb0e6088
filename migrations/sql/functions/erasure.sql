-- Erase a conversation of the tenant that the transaction acts for, and return the id of its record in `erasures`; null if there is
-- no such conversation, or if it was erased before.
create or replace function erase_conversation(p_id uuid, p_conversation uuid, p_asked_for text, p_key uuid, p_request uuid)
returns uuid language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_tenant constant pg_catalog.uuid := nullif(current_setting('app.tenant_id', true), '')::pg_catalog.uuid;
    v_at pg_catalog.timestamptz;
    v_number integer;
    v_previous pg_catalog.bytea;
    v_messages integer;
    v_snapshots integer;
    v_blocks integer;
    v_pins integer;
    v_runs integer;
    v_steps integer;
    v_deliveries integer;
    v_keys integer;
begin
    -- One after the other within a tenant: each proof needs the one before it.
    perform pg_advisory_xact_lock(hashtextextended('palimpsest.erasures' || v_tenant::pg_catalog.text, 0));
    -- The conversation before all that belongs to it, as everywhere: whatever is under way ends first, or finds it gone.
    perform from public.conversations as c
        where c.id = p_conversation and c.tenant_id = v_tenant and c.erased_at is null for update;
    if not found then
        return null;
    end if;
    v_at := clock_timestamp();
    update public.conversations as c
        set erased_at = v_at, external_id = null, user_ref = null, model = null, system = null, tools = null, policy = '{}',
            metadata = '{}', open_calls = '{}', head_version = 0, pending_version = null, covers_through = -1,
            check_due_at = null, check_request_id = null, revision = public.next_revision(c.revision)
        where c.id = p_conversation;
    update public.runs as r
        set state = case when r.state in ('queued', 'running', 'dead') then 'failed' else r.state end,
            reason = case when r.state in ('queued', 'running') then 'erased' else r.reason end,
            finished_at = case when r.state in ('queued', 'running') then v_at else r.finished_at end,
            error = null, instructions = null, block_id = null,
            -- Of the policy numbers and switches stay: they hold no words.
            policy = (select coalesce(jsonb_object_agg(named.key, named.value), '{}')
                      from jsonb_each(r.policy) as named where jsonb_typeof(named.value) in ('number', 'boolean')),
            lease_token = null, lease_expires_at = null
        where r.conversation_id = p_conversation;
    get diagnostics v_runs = row_count;
    update public.run_steps as s set detail = null, error = null
        where s.run_id in (select r.id from public.runs as r where r.conversation_id = p_conversation);
    get diagnostics v_steps = row_count;
    delete from public.webhook_deliveries as d
        where d.run_id in (select r.id from public.runs as r where r.conversation_id = p_conversation);
    get diagnostics v_deliveries = row_count;
    perform set_config('palimpsest.erasure', p_conversation::pg_catalog.text, true);
    delete from public.messages as m where m.conversation_id = p_conversation;
    get diagnostics v_messages = row_count;
    delete from public.snapshot_parts as s where s.conversation_id = p_conversation;
    get diagnostics v_snapshots = row_count;
    perform set_config('palimpsest.erasure', '', true);
    delete from public.context_blocks as b where b.conversation_id = p_conversation;
    get diagnostics v_blocks = row_count;
    delete from public.pins as p where p.conversation_id = p_conversation;
    get diagnostics v_pins = row_count;
    delete from public.idempotency_keys as k where k.conversation_id = p_conversation;
    get diagnostics v_keys = row_count;
    delete from public.assemblies as a where a.conversation_id = p_conversation;
    delete from public.message_media as f where f.conversation_id = p_conversation;
    delete from public.waiting_snapshots as w where w.conversation_id = p_conversation;
    delete from public.turn_usages as u where u.conversation_id = p_conversation;
    delete from public.recall_segments as s where s.conversation_id = p_conversation;
    -- A recall across several conversations quotes them together: all of its rows go.
    delete from public.recall_requests as r
        where r.of_user and r.request_id in (
            select o.request_id from public.recall_requests as o where o.conversation_id = p_conversation and o.of_user);
    delete from public.recall_requests as r where r.conversation_id = p_conversation;
    delete from public.gateway_prefixes as p where p.conversation_id = p_conversation;
    delete from public.gateway_recalls as r where r.conversation_id = p_conversation;
    delete from public.gateway_conversations as g where g.conversation_id = p_conversation;

    select e.number, e.proof into v_number, v_previous from public.erasures as e
        where e.tenant_id = v_tenant order by e.number desc limit 1;
    v_number := coalesce(v_number, 0) + 1;
    insert into public.erasures (id, tenant_id, number, conversation_id, asked_for, key_id, request_id, message_count,
                                 snapshot_count, context_block_count, pin_count, run_count, step_count,
                                 delivery_count, idempotency_key_count, proof, erased_at)
    values (p_id, v_tenant, v_number, p_conversation, p_asked_for, p_key, p_request, v_messages, v_snapshots, v_blocks,
            v_pins, v_runs, v_steps, v_deliveries, v_keys,
            sha256(convert_to(concat_ws('|', coalesce(encode(v_previous, 'hex'), ''), v_number, p_id, v_tenant,
                p_conversation, p_asked_for, coalesce(p_key::pg_catalog.text, ''), coalesce(p_request::pg_catalog.text, ''),
                to_char(v_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), v_messages, v_snapshots, v_blocks,
                v_pins, v_runs, v_steps, v_deliveries, v_keys), 'UTF8')),
            v_at);
    return p_id;
end $$;

-- Return the tenants of which conversations may be erased by age: those with a retention, their own or the installation's
-- (p_days; 0 = none), and those with conversations that have one. For the latter has_default is false.
create or replace function tenants_with_retention(p_days integer) returns table (tenant_id uuid, has_default boolean)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select t.id, coalesce((t.policy ->> 'message_retention_days')::integer, p_days) > 0 from public.tenants as t
    where coalesce((t.policy ->> 'message_retention_days')::integer, p_days) > 0
        or exists (select from public.conversations as c where c.tenant_id = t.id and c.policy ? 'message_retention_days')
    order by 1
$$;

-- Return whether each message of a conversation was said before its retention: the conversation's own, else its tenant's, else
-- the installation's (p_days); 0 = none. A conversation without messages is as old as its row.
create or replace function is_past_retention(p_conversation uuid, p_days integer) returns boolean
language plpgsql stable as $$
declare
    v_before timestamptz;
    v_newest timestamptz;
begin
    select now() - make_interval(days => nullif(coalesce(
            (c.policy ->> 'message_retention_days')::integer, (t.policy ->> 'message_retention_days')::integer, p_days), 0))
        into v_before from conversations as c join tenants as t on t.id = c.tenant_id where c.id = p_conversation;
    if v_before is null then
        return false;
    end if;
    -- The newest one alone says no for nearly all.
    select coalesce(m.said_at, m.created_at) into v_newest from messages as m
        where m.conversation_id = p_conversation order by m.seq desc limit 1;
    if not found then
        select c.created_at into v_newest from conversations as c where c.id = p_conversation;
    end if;
    return v_newest < v_before and not exists (
        select from messages as m
        where m.conversation_id = p_conversation and coalesce(m.said_at, m.created_at) >= v_before);
end $$;

-- Remove the media of messages that an edit has superseded; services may delete nothing themselves. A head that has gone back may
-- show more media, so they are looked at again.
create or replace function forget_media() returns trigger language plpgsql
security definer set search_path = pg_catalog, public, pg_temp as $$
begin
    if new.edits <> old.edits then
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
create or replace trigger conversations_forget_media before update of edits, head_version on conversations
    for each row when (old.newest_media >= 0) execute function forget_media();
