-- Workers and sweepers, as they tell of themselves every few seconds. Nothing of a tenant is in it, and nothing is lost
-- with it.
create table processes (
    id uuid constraint pk_processes primary key,
    kind text not null constraint ck_processes_kind check (kind in ('worker', 'sweeper')),
    host text not null,
    pid integer not null,
    queues text[] not null,
    version text not null,
    slots integer not null,
    busy integer not null default 0,
    oldest_task_at timestamptz,
    started_at timestamptz not null default now(),
    seen_at timestamptz not null default now()
) with (fillfactor = 50);
grant select, insert, delete on processes to palimpsest_service;
grant update (seen_at, busy, oldest_task_at) on processes to palimpsest_service;

-- Readiness compares it with what the code was written for.
grant select on alembic_version to palimpsest_service;

grant select (queue, attempts) on runs to palimpsest_background;
grant update (queued_at) on runs to palimpsest_background;
create policy background_offers on runs for update to palimpsest_background using (true) with check (true);

-- What is left to do, over all tenants, as numbers.
create function backlog() returns table (
    due_checks bigint, oldest_due_check_seconds double precision,
    queued_runs bigint, running_runs bigint, expired_leases bigint, dead_runs bigint
) language sql stable security definer set search_path = pg_catalog, public as $$
    select checks.due, checks.oldest, active.queued, active.running, active.expired, dead.runs
    from (select count(*) as due, coalesce(extract(epoch from now() - min(c.check_due_at)), 0)::float8 as oldest
          from public.conversations as c where c.check_due_at is not null) as checks,
         (select count(*) filter (where r.state = 'queued') as queued,
                 count(*) filter (where r.state = 'running') as running,
                 count(*) filter (where r.state = 'running' and r.lease_expires_at < now()) as expired
          from public.runs as r where r.state in ('queued', 'running')) as active,
         (select count(*) as runs from public.runs as r where r.state = 'dead') as dead
$$;

-- For the sweeper: due checks whose wake-up got lost. Tenants take turns, so that one with very many does not keep the
-- others waiting; nth is a check's place among its tenant's own.
create function overdue_checks_by_turns(p_seconds double precision, p_limit integer) returns table (
    conversation_id uuid, tenant_id uuid, due_at timestamptz, nth bigint
) language sql stable security definer set search_path = pg_catalog, public as $$
    select c.id, c.tenant_id, c.check_due_at,
           row_number() over (partition by c.tenant_id order by c.check_due_at, c.id) as nth
    from public.conversations as c
    where c.check_due_at < now() - make_interval(secs => p_seconds)
    order by nth, c.check_due_at limit p_limit
$$;

-- For the sweeper: runs nobody works on any more, and queued runs that nobody came for; tenants take turns. Of runs that wait
-- for a model, only as many as the tenant may begin (p_per_tenant less those under way; 0 = all).
create function stranded_runs_by_turns(p_seconds double precision, p_limit integer, p_per_tenant integer)
returns table (run_id uuid, tenant_id uuid, queue text, attempts integer, expired boolean)
language sql stable security definer set search_path = pg_catalog, public as $$
    with active as (
        select r.id, r.tenant_id, r.queue, r.state, r.attempts, r.queued_at,
               r.state = 'running' and r.lease_expires_at < now() as expired
        from public.runs as r where r.state in ('queued', 'running')
    ), under_way as (
        select a.tenant_id, count(*) as runs from active as a
        where a.state = 'running' and a.queue = 'summaries' and not a.expired group by a.tenant_id
    ), left_alone as (
        select a.*, row_number() over (partition by a.tenant_id, a.queue, a.state order by a.queued_at, a.id) as nth
        from active as a
        where a.expired or (a.state = 'queued' and a.queued_at < now() - make_interval(secs => p_seconds))
    )
    select l.id, l.tenant_id, l.queue, l.attempts, l.expired
    from left_alone as l left join under_way as u on u.tenant_id = l.tenant_id
    where p_per_tenant = 0 or l.expired or l.queue <> 'summaries' or l.nth <= p_per_tenant - coalesce(u.runs, 0)
    order by l.nth, l.queued_at limit p_limit
$$;

-- Whether one more run may ask a model, by the number of those that do: p_per_tenant of its tenant, p_overall of all (0 = any
-- number). Claims count one after the other, or two could both take the last place; the caller's transaction claims.
create function may_summarize(p_run uuid, p_per_tenant integer, p_overall integer) returns boolean
language plpgsql security definer set search_path = pg_catalog, public as $$
declare
    v_tenant uuid;
    v record;
begin
    select r.tenant_id into v_tenant from public.runs as r where r.id = p_run and r.queue = 'summaries';
    if v_tenant is null then
        return true;
    end if;
    perform pg_advisory_xact_lock(hashtextextended(
        'palimpsest.summaries' || case when p_overall > 0 then '' else v_tenant::text end, 0));
    select count(*) filter (where r.tenant_id = v_tenant) as own, count(*) as overall into v
        from public.runs as r
        where r.state = 'running' and r.queue = 'summaries' and r.lease_expires_at >= now() and r.id <> p_run;
    return (p_per_tenant = 0 or v.own < p_per_tenant) and (p_overall = 0 or v.overall < p_overall);
end $$;

-- The queued run to begin when a place has become free: of the tenant with the fewest under way, the one that has waited
-- longest. It counts as offered from now on, so that two places that become free at once get two runs.
create function offer_summary(p_per_tenant integer) returns table (run_id uuid, tenant_id uuid)
language sql security definer set search_path = pg_catalog, public as $$
    update public.runs as offered set queued_at = now()
    where offered.id = (
        select r.id from public.runs as r
            join (select a.tenant_id,
                         count(*) filter (where a.state = 'running' and a.lease_expires_at >= now()) as under_way
                  from public.runs as a
                  where a.state in ('queued', 'running') and a.queue = 'summaries'
                  group by a.tenant_id) as load on load.tenant_id = r.tenant_id
        where r.state = 'queued' and r.queue = 'summaries' and (p_per_tenant = 0 or load.under_way < p_per_tenant)
        order by load.under_way, r.queued_at, r.id limit 1
        for update of r skip locked)
    returning offered.id, offered.tenant_id
$$;

grant create on schema public to palimpsest_background;
alter function backlog() owner to palimpsest_background;
alter function overdue_checks_by_turns(double precision, integer) owner to palimpsest_background;
alter function stranded_runs_by_turns(double precision, integer, integer) owner to palimpsest_background;
alter function may_summarize(uuid, integer, integer) owner to palimpsest_background;
alter function offer_summary(integer) owner to palimpsest_background;
revoke create on schema public from palimpsest_background;
revoke execute on function backlog(), overdue_checks_by_turns(double precision, integer),
    stranded_runs_by_turns(double precision, integer, integer), may_summarize(uuid, integer, integer),
    offer_summary(integer) from public;
grant execute on function backlog(), overdue_checks_by_turns(double precision, integer),
    stranded_runs_by_turns(double precision, integer, integer), may_summarize(uuid, integer, integer),
    offer_summary(integer) to palimpsest_service;
