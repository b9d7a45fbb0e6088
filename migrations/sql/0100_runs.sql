-- Runs, what waits beside them, and how much of it there is: across tenants, for workers, the sweeper and the metrics.

-- For the sweeper: runs nobody works on any more, and queued runs that nobody came for; tenants take turns. Of runs that wait
-- for a model, only as many as the tenant may begin (p_per_tenant less those under way; 0 = all).
create function stranded_runs_by_turns(p_seconds double precision, p_limit integer, p_per_tenant integer)
returns table (run_id uuid, tenant_id uuid, queue text, attempts integer, expired boolean)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
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
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_tenant pg_catalog.uuid;
    v record;
begin
    select r.tenant_id into v_tenant from public.runs as r where r.id = p_run and r.queue = 'summaries';
    if v_tenant is null then
        return true;
    end if;
    perform pg_advisory_xact_lock(hashtextextended(
        'palimpsest.summaries' || case when p_overall > 0 then '' else v_tenant::pg_catalog.text end, 0));
    select count(*) filter (where r.tenant_id = v_tenant) as own, count(*) as overall into v
        from public.runs as r
        where r.state = 'running' and r.queue = 'summaries' and r.lease_expires_at >= now() and r.id <> p_run;
    return (p_per_tenant = 0 or v.own < p_per_tenant) and (p_overall = 0 or v.overall < p_overall);
end $$;

-- The queued run to begin when a place has become free: of the tenant with the fewest under way, the one that has waited
-- longest. It counts as offered from now on, so that two places that become free at once get two runs.
create function offer_summary(p_per_tenant integer) returns table (run_id uuid, tenant_id uuid)
language sql security definer set search_path = pg_catalog, public, pg_temp as $$
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

-- For the sweeper: deliveries of any tenant whose time has come.
create function due_deliveries(p_limit integer) returns table (delivery_id uuid, tenant_id uuid)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select d.id, d.tenant_id from public.webhook_deliveries as d
    where d.state = 'pending' and d.next_attempt_at <= now()
    order by d.next_attempt_at limit p_limit
$$;

-- Add a step's model calls to the day of its tenant.
create function count_model_usage() returns trigger
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_tokens constant bigint := coalesce(new.model_input_tokens, 0) + coalesce(new.model_output_tokens, 0);
begin
    insert into public.model_usage as u (tenant_id, day, model_calls, input_tokens, output_tokens, cost_usd)
    values (new.tenant_id, (now() at time zone 'utc')::pg_catalog.date, new.model_calls, coalesce(new.model_input_tokens, 0),
            coalesce(new.model_output_tokens, 0), coalesce(new.cost_usd, 0))
    on conflict (tenant_id, day) do update
        set model_calls = u.model_calls + excluded.model_calls, input_tokens = u.input_tokens + excluded.input_tokens,
            output_tokens = u.output_tokens + excluded.output_tokens, cost_usd = u.cost_usd + excluded.cost_usd;
    -- From here on it is spent, and no longer reserved.
    update public.runs as r
        set reserved_tokens = greatest(0, r.reserved_tokens - v_tokens),
            reserved_cost_usd = greatest(0, r.reserved_cost_usd - coalesce(new.cost_usd, 0))
        where r.id = new.run_id and r.attempts = new.attempt and (r.reserved_tokens > 0 or r.reserved_cost_usd > 0);
    return null;
end $$;
create trigger run_steps_count_usage after insert on run_steps for each row
    when (new.model_calls > 0 or new.model_input_tokens > 0 or new.model_output_tokens > 0 or new.cost_usd > 0)
    execute function count_model_usage();

-- For the sweeper: waiting summaries of any tenant whose time has come; tenants take turns.
create function due_waiting_summaries(p_limit integer) returns table (run_id uuid, tenant_id uuid)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select w.run_id, w.tenant_id from public.waiting_summaries as w where w.done_at is null and w.not_before <= now()
    order by row_number() over (partition by w.tenant_id order by w.created_at, w.run_id), w.created_at limit p_limit
$$;

-- What was spent today and what waits, over all tenants, as numbers.
create function model_spending() returns table (tokens bigint, cost_usd numeric, waiting_summaries bigint)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select coalesce(sum(u.input_tokens + u.output_tokens), 0)::bigint, coalesce(sum(u.cost_usd), 0),
           (select count(*) from public.waiting_summaries as w where w.done_at is null)
    from public.model_usage as u where u.day = (now() at time zone 'utc')::pg_catalog.date
$$;

-- For the metrics: what models have been asked since the first day, over all tenants. One row a tenant and day is read.
create function model_totals() returns table (
    model_calls bigint, input_tokens bigint, output_tokens bigint, cost_usd numeric
) language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select coalesce(sum(u.model_calls), 0)::bigint, coalesce(sum(u.input_tokens), 0)::bigint,
           coalesce(sum(u.output_tokens), 0)::bigint, coalesce(sum(u.cost_usd), 0)
    from public.model_usage as u
$$;

-- What is left to do, over all tenants, as numbers.
create function backlog() returns table (
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

-- For the metrics: what waits beside checks, over all tenants, as numbers. `checks` and `summaries` are queued runs by their
-- queue; `budget` are summaries that wait for another day's budget and `overdue` those of them whose day has come;
-- `webhooks` are deliveries and `batches` message batches that are due. Each count reads the partial index of what is open.
create function waiting_work() returns table (kind text, waiting bigint, oldest_seconds double precision)
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
        union all
        select 'batches', b.next_attempt_at from public.model_batches as b
            where b.state in ('wanted', 'sending', 'submitted', 'canceling', 'ended')
                and b.next_attempt_at <= now()
    )
    select k.kind, count(w.kind), greatest(0, coalesce(extract(epoch from now() - min(w.since)), 0))::pg_catalog.float8
    from unnest(array['checks', 'summaries', 'budget', 'overdue', 'webhooks', 'batches']) as k (kind)
        left join waits as w on w.kind = k.kind
    group by k.kind
$$;
