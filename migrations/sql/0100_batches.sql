-- Message batches, across tenants.

-- For checks: wish for a batch for each of some conversations of any tenant, unless it has one that is not over.
create function want_batches(p_ids uuid[], p_conversations uuid[]) returns table (batch_id uuid, tenant_id uuid)
language sql security definer set search_path = pg_catalog, public, pg_temp as $$
    insert into public.model_batches as made (id, tenant_id, conversation_id, request_id)
    select wanted.id, c.tenant_id, c.id, c.check_request_id
    from unnest(p_ids, p_conversations) as wanted (id, conversation_id)
        join public.conversations as c on c.id = wanted.conversation_id
    on conflict do nothing
    returning made.id, made.tenant_id
$$;

-- For the sweeper: batches of any tenant that something is to be done about.
create function due_batches(p_limit integer) returns table (
    batch_id uuid, tenant_id uuid, next_attempt_at timestamptz
) language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select b.id, b.tenant_id, b.next_attempt_at from public.model_batches as b
    where b.state in ('wanted', 'sending', 'submitted', 'canceling', 'ended') and b.next_attempt_at <= now()
    order by b.next_attempt_at limit p_limit
$$;

-- Which of the provider's batches belong to a row, of whatever tenant: one key serves all of them.
create function known_batches(p_provider_ids text[]) returns setof text
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select b.provider_batch_id from public.model_batches as b where b.provider_batch_id = any (p_provider_ids)
$$;

-- Message batches that are over, by the time at which they were made. What they cost is on the steps of runs.
create function expire_batches(p_seconds double precision, p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_before constant pg_catalog.timestamptz := now() - make_interval(secs => p_seconds);
    v_removed integer;
begin
    delete from public.model_batches as b
        where b.id = any (array(
            select o.id from public.model_batches as o
            where o.id < public.first_id_at(v_before) and o.finished_at < v_before
                and o.state not in ('wanted', 'sending', 'submitted', 'canceling', 'ended')
            order by o.id limit p_limit for update skip locked));
    get diagnostics v_removed = row_count;
    return v_removed;
end $$;
