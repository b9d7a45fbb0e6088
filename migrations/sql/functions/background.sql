-- Return webhook deliveries of any tenant that are due.
create or replace function due_deliveries(p_limit integer) returns table (delivery_id uuid, tenant_id uuid)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select d.id, d.tenant_id from public.webhook_deliveries as d
    where d.state = 'pending' and d.next_attempt_at <= now()
    order by d.next_attempt_at limit p_limit
$$;

-- Return the tenants of the oldest usages that are not reckoned yet.
create or replace function usages_to_reckon(p_limit integer) returns setof uuid
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select distinct due.tenant_id from (
        select u.tenant_id from public.turn_usages as u where u.reckoned_at is null order by u.answered_at limit p_limit
    ) as due
$$;

-- Return what models cost today and how many summaries wait for a budget, over all tenants.
create or replace function model_spending() returns table (tokens bigint, cost_usd numeric, waiting_summaries bigint)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select coalesce(sum(u.input_tokens + u.output_tokens), 0)::bigint, coalesce(sum(u.cost_usd), 0),
           (select count(*) from public.waiting_summaries as w where w.done_at is null)
    from public.model_usage as u where u.day = (now() at time zone 'utc')::pg_catalog.date
$$;

-- Return all model calls since the first day, over all tenants, for the metrics. It reads one row a tenant and day.
create or replace function model_totals() returns table (
    model_calls bigint, input_tokens bigint, output_tokens bigint, cost_usd numeric
) language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select coalesce(sum(u.model_calls), 0)::bigint, coalesce(sum(u.input_tokens), 0)::bigint,
           coalesce(sum(u.output_tokens), 0)::bigint, coalesce(sum(u.cost_usd), 0)
    from public.model_usage as u
$$;

-- Return how much checking and compacting is left to do, over all tenants.
create or replace function backlog() returns table (
    due_checks bigint, oldest_due_check_seconds double precision,
    queued_runs bigint, running_runs bigint, expired_leases bigint, dead_runs bigint
) language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select checks.due, checks.oldest, active.queued, active.running, active.expired, dead.runs
    from (select count(*) as due, coalesce(extract(epoch from now() - min(c.check_due_at)), 0)::pg_catalog.float8 as oldest
          from public.conversations as c where c.check_due_at is not null) as checks,
         (select count(*) filter (where r.state = 'queued') as queued,
                 count(*) filter (where r.state = 'running') as running,
                 count(*) filter (where r.state = 'running' and r.lease_expires_at < now()) as expired
          from public.runs as r where r.state in ('queued', 'running')) as active,
         (select count(*) as runs from public.runs as r where r.state = 'dead') as dead
$$;

-- Return how much other work waits and for how long, over all tenants, for the metrics. `checks` and `summaries` are queued
-- runs by queue, `budget` summaries that wait for another day's budget, `overdue` those of them whose day has come, and
-- `webhooks` deliveries that are due. Each count reads a partial index.
create or replace function waiting_work() returns table (kind text, waiting bigint, oldest_seconds double precision)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    with waits (kind, since) as (
        select r.queue, r.queued_at from public.runs as r where r.state = 'queued'
        union all
        select 'budget', w.created_at from public.waiting_summaries as w where w.done_at is null
        union all
        select 'overdue', w.not_before from public.waiting_summaries as w
            where w.done_at is null and w.not_before <= now()
        union all
        select 'webhooks', d.next_attempt_at from public.webhook_deliveries as d
            where d.state = 'pending' and d.next_attempt_at <= now()
    )
    select k.kind, count(w.kind), greatest(0, coalesce(extract(epoch from now() - min(w.since)), 0))::pg_catalog.float8
    from unnest(array['checks', 'summaries', 'budget', 'overdue', 'webhooks']) as k (kind)
        left join waits as w on w.kind = k.kind
    group by k.kind
$$;
