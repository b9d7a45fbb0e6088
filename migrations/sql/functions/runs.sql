-- Fill in what a run does, for inserts that leave it out.
create or replace function write_run_kind() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    new.kind := case
        when new.trigger = 'context_block' then 'context_block'
        when new.base_version is not null then 'recovery'
        when new.trigger = 'manual' then 'manual'
        when new.trigger = 'check' then 'ladder'
        else 'request'
    end;
    return new;
end $$;
create or replace trigger runs_kind before insert or update on runs for each row
    when (new.kind is null) execute function write_run_kind();

-- Forget the holder of a lease that was claimed or released without naming a process.
create or replace function forget_holder() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    new.process_id := null;
    return new;
end $$;
create or replace trigger runs_forget_holder before update of lease_token on runs for each row
    when (old.process_id is not null and new.process_id is not distinct from old.process_id
          and new.lease_token is distinct from old.lease_token)
    execute function forget_holder();

-- Return runs whose lease has expired and queued runs that no worker took; tenants take turns. Of runs that wait for a model,
-- only as many as the tenant may begin: p_per_tenant less those under way; 0 = all.
create or replace function stranded_runs_by_turns(p_seconds double precision, p_limit integer, p_per_tenant integer)
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

-- Return whether one more run may ask a model: p_per_tenant of its tenant and p_overall of all may do so at a time; 0 = any
-- number. Claims take a lock before they count, or two could take the last place; the caller's transaction claims.
create or replace function may_summarize(p_run uuid, p_per_tenant integer, p_overall integer) returns boolean
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

-- Return the queued run to begin when a place is free: of the tenant with the fewest under way, the one that has waited
-- longest. It counts as offered from now on, so that two free places get two runs.
create or replace function offer_summary(p_per_tenant integer) returns table (run_id uuid, tenant_id uuid)
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

-- Expire the leases of a process that ends. Runs that are locked are being committed, and left to their lease.
create or replace function expire_leases(p_process uuid) returns void
language sql security definer set search_path = pg_catalog, public, pg_temp as $$
    with lost as (
        select r.id from public.runs as r
        where r.state = 'running' and r.process_id = p_process and r.lease_expires_at >= now()
        for update of r skip locked
    )
    update public.runs as r set lease_expires_at = now() from lost where r.id = lost.id
$$;

-- Add a step's model calls to the day of its tenant.
create or replace function count_model_usage() returns trigger
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
create or replace trigger run_steps_count_usage after insert on run_steps for each row
    when (new.model_calls > 0 or new.model_input_tokens > 0 or new.model_output_tokens > 0 or new.cost_usd > 0)
    execute function count_model_usage();

-- Return waiting summaries of any tenant whose time has come; tenants take turns.
create or replace function due_waiting_summaries(p_limit integer) returns table (run_id uuid, tenant_id uuid)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select w.run_id, w.tenant_id from public.waiting_summaries as w where w.done_at is null and w.not_before <= now()
    order by row_number() over (partition by w.tenant_id order by w.created_at, w.run_id), w.created_at limit p_limit
$$;
