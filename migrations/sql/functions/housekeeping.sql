-- Return the smallest UUIDv7 of a moment: ids made before it are smaller.
create or replace function first_id_at(p_time timestamptz) returns uuid language sql immutable as $$
    select (lpad(to_hex((extract(epoch from p_time) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

-- Remove the oldest rows of a table, those that came, or that ended, more than p_seconds ago; p_limit at most. Deliveries
-- have to have ended. Usages are removed tenant by tenant, as their index is.
create or replace function expire_rows(p_table text, p_seconds double precision, p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_before constant pg_catalog.timestamptz := now() - make_interval(secs => p_seconds);
    v_removed integer;
begin
    case p_table
        when 'idempotency_keys' then
            delete from public.idempotency_keys as k where k.ctid = any (array(
                select o.ctid from public.idempotency_keys as o where o.created_at < v_before
                order by o.created_at limit p_limit for update skip locked));
        when 'webhook_deliveries' then
            delete from public.webhook_deliveries as d where d.id = any (array(
                select o.id from public.webhook_deliveries as o
                where o.id < public.first_id_at(v_before) and o.state <> 'pending'
                order by o.id limit p_limit for update skip locked));
        when 'console_sessions' then
            delete from public.console_sessions as s where s.token_hash = any (array(
                select o.token_hash from public.console_sessions as o where o.expires_at < v_before
                order by o.expires_at limit p_limit for update skip locked));
        when 'recall_requests' then
            delete from public.recall_requests as r where r.id = any (array(
                select o.id from public.recall_requests as o where o.id < public.first_id_at(v_before)
                order by o.id limit p_limit for update skip locked));
        when 'turn_usages' then
            delete from public.turn_usages as u where (u.conversation_id, u.seq) in (
                select o.conversation_id, o.seq from public.tenants as t cross join lateral (
                    select e.conversation_id, e.seq from public.turn_usages as e
                    where e.tenant_id = t.id and e.answered_at < v_before
                    order by e.answered_at limit p_limit for update skip locked) as o
                limit p_limit);
    end case;
    get diagnostics v_removed = row_count;
    return v_removed;
end $$;

-- Remove runs that ended more than p_seconds ago, with their steps, unless a snapshot, a delivery or a waiting summary names
-- them. It looks at p_limit runs after p_after; last_seen is where to go on, null at the end.
create or replace function expire_runs(
    p_after uuid, p_seconds double precision, p_limit integer, out last_seen uuid, out removed integer
) language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_before constant pg_catalog.timestamptz := now() - make_interval(secs => p_seconds);
    v_seen constant pg_catalog.uuid[] := array(
        select r.id from public.runs as r where r.id > p_after and r.id < public.first_id_at(v_before)
        order by r.id limit p_limit);
    v_gone pg_catalog.uuid[];
begin
    last_seen := v_seen[p_limit];
    v_gone := array(
        select r.id from public.runs as r
        where r.id = any (v_seen) and r.state not in ('queued', 'running') and r.finished_at < v_before
            and not exists (select from public.snapshot_parts as s where s.run_id = r.id)
            and not exists (select from public.webhook_deliveries as d where d.run_id = r.id)
            and not exists (select from public.waiting_summaries as w where w.run_id = r.id and w.done_at is null)
        for update skip locked);
    delete from public.run_steps as s where s.run_id = any (v_gone);
    delete from public.runs as r where r.id = any (v_gone);
    get diagnostics removed = row_count;
end $$;

-- Remove snapshots older than p_seconds that lead neither to the head nor to the pending one, from the end of each side branch
-- backwards, so that the rest keep their parents. It looks at p_limit conversations after p_after and removes at most as many
-- snapshots. Conversations with a run under way or a lock are left for another pass.
create or replace function expire_snapshots(
    p_after uuid, p_seconds double precision, p_limit integer, out last_seen uuid, out removed integer
) language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_before constant pg_catalog.timestamptz := now() - make_interval(secs => p_seconds);
    v_seen constant pg_catalog.uuid[] := array(
        select c.id from public.conversations as c where c.id > p_after order by c.id limit p_limit);
    v record;
    v_count integer;
begin
    last_seen := v_seen[p_limit];
    removed := 0;
    perform set_config('palimpsest.retention', 'snapshots', true);
    for v in
        -- Whatever else is on one of these ways has a child on it. Looked for in one pass over all of them: one by one, each
        -- would be looked for among as many of its conversation.
        select c.id as conversation_id, ending.version from public.conversations as c
            join (select s.conversation_id, s.version from public.snapshot_parts as s
                  where s.conversation_id = any (v_seen) and s.created_at < v_before
                  except
                  select s.conversation_id, s.parent_version from public.snapshot_parts as s
                  where s.conversation_id = any (v_seen)) as ending
                on ending.conversation_id = c.id and ending.version not in (c.head_version, coalesce(c.pending_version, 0))
        where not exists (select from public.runs as r
                          where r.conversation_id = c.id and r.state in ('queued', 'running'))
        -- As long as the row is locked no head can move to a snapshot that goes.
        limit p_limit for no key update of c skip locked
    loop
        delete from public.snapshot_parts as s
            where s.conversation_id = v.conversation_id and s.version = v.version
                and not exists (select from public.snapshot_parts as child
                                where child.conversation_id = s.conversation_id and child.parent_version = s.version);
        get diagnostics v_count = row_count;
        removed := removed + v_count;
    end loop;
    perform set_config('palimpsest.retention', '', true);
end $$;
