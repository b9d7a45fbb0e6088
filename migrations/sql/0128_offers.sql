-- Whose place it is that has become free: the tenant's with the fewest summaries under way, of those that have room, and its run
-- that has waited longest. Each tenant that waits is found by the first of its runs, and has a few of them looked at, as somebody
-- may have one of them in hand.
create or replace function offer_summary(p_per_tenant integer) returns table (run_id uuid, tenant_id uuid)
language sql security definer set search_path = pg_catalog, public, pg_temp as $$
    with recursive waiting as (
        (select r.tenant_id from public.runs as r
         where r.state = 'queued' and r.queue = 'summaries' order by r.tenant_id limit 1)
        union all
        select (select r.tenant_id from public.runs as r
                where r.state = 'queued' and r.queue = 'summaries' and r.tenant_id > w.tenant_id
                order by r.tenant_id limit 1)
        from waiting as w where w.tenant_id is not null
    ), load as materialized (
        select r.tenant_id, count(*) as under_way from public.runs as r
        where r.state = 'running' and r.queue = 'summaries' and r.lease_expires_at >= now() group by r.tenant_id
    ), foremost as materialized (
        select first.id, coalesce(l.under_way, 0) as under_way
        from waiting as w left join load as l on l.tenant_id = w.tenant_id
            cross join lateral (
                select r.id from public.runs as r
                where r.state = 'queued' and r.queue = 'summaries' and r.tenant_id = w.tenant_id
                order by r.queued_at, r.id limit 4) as first
        where p_per_tenant = 0 or coalesce(l.under_way, 0) < p_per_tenant
    )
    update public.runs as offered set queued_at = now()
    where offered.id = (
        -- By their ids alone: with the condition on what waits the planner goes through all of that instead.
        select r.id from public.runs as r join foremost as f on f.id = r.id
        order by f.under_way, r.queued_at, r.id limit 1
        for update of r skip locked)
        and offered.state = 'queued'
    returning offered.id, offered.tenant_id
$$;
