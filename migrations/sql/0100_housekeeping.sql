-- What is removed when its time is over. Each function takes on a bounded number of rows and passes over those that somebody
-- has locked, so that it is in nobody's way; it runs again until nothing is left.

-- The smallest UUIDv7 of a moment: ids made before it are smaller.
create function first_id_at(p_time timestamptz) returns uuid language sql immutable as $$
    select (lpad(to_hex((extract(epoch from p_time) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

-- Idempotency keys, by the time at which they came.
create function expire_idempotency_keys(p_seconds double precision, p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_removed integer;
begin
    delete from public.idempotency_keys as k
        where k.ctid = any (array(
            select o.ctid from public.idempotency_keys as o
            where o.created_at < now() - make_interval(secs => p_seconds)
            limit p_limit for update skip locked));
    get diagnostics v_removed = row_count;
    return v_removed;
end $$;

-- Deliveries that have ended, by the time at which they were made.
create function expire_deliveries(p_seconds double precision, p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_removed integer;
begin
    delete from public.webhook_deliveries as d
        where d.id = any (array(
            select o.id from public.webhook_deliveries as o
            where o.id < public.first_id_at(now() - make_interval(secs => p_seconds)) and o.state <> 'pending'
            order by o.id limit p_limit for update skip locked));
    get diagnostics v_removed = row_count;
    return v_removed;
end $$;

-- Runs that have ended, and their steps, unless a snapshot or a delivery names them. Looks at p_limit runs after p_after;
-- last_seen is where to go on, null at the end.
create function expire_runs(
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
        for update skip locked);
    delete from public.run_steps as s where s.run_id = any (v_gone);
    delete from public.runs as r where r.id = any (v_gone);
    get diagnostics removed = row_count;
end $$;

-- Snapshots that are not on the way to the head or to the pending one, from the end of each side branch backwards, so that
-- whatever is left has its parent. Looks at p_limit conversations after p_after; conversations with a run under way, and those
-- that somebody has locked, have their turn another time.
create function expire_snapshots(
    p_after uuid, p_seconds double precision, p_limit integer, out last_seen uuid, out removed integer
) language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_seen constant pg_catalog.uuid[] := array(
        select c.id from public.conversations as c where c.id > p_after order by c.id limit p_limit);
    v_ids pg_catalog.uuid[];
begin
    last_seen := v_seen[p_limit];
    -- As long as the row is locked no head can move to a snapshot that goes.
    v_ids := array(
        select c.id from public.conversations as c
        where c.id = any (v_seen)
            and exists (select from public.snapshot_parts as s where s.conversation_id = c.id
                        and s.version not in (c.head_version, coalesce(c.pending_version, 0)))
            and not exists (select from public.runs as r
                            where r.conversation_id = c.id and r.state in ('queued', 'running'))
        for no key update skip locked);
    perform set_config('palimpsest.retention', 'snapshots', true);
    delete from public.snapshot_parts as s
        using public.conversations as c
        where c.id = any (v_ids) and s.conversation_id = c.id
            and s.created_at < now() - make_interval(secs => p_seconds)
            and not exists (select from public.snapshot_parts as child
                            where child.conversation_id = s.conversation_id and child.parent_version = s.version)
            and s.version not in (
                select chain.version from public.snapshot_chain(c.id, c.head_version) as chain
                union all
                select chain.version from public.snapshot_chain(c.id, c.pending_version) as chain);
    get diagnostics removed = row_count;
    perform set_config('palimpsest.retention', '', true);
end $$;

-- Remove sessions whose time was over a day ago, some at a time.
create function expire_console_sessions(p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_removed integer;
begin
    delete from public.console_sessions as s
        where s.token_hash = any (array(
            select o.token_hash from public.console_sessions as o
            where o.expires_at < now() - interval '1 day'
            order by o.expires_at limit p_limit for update skip locked));
    get diagnostics v_removed = row_count;
    return v_removed;
end $$;
