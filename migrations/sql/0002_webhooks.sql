create table webhooks (
    id uuid constraint pk_webhooks primary key,
    tenant_id uuid not null constraint fk_webhooks_tenant_id_tenants references tenants (id),
    url text not null,
    secret text not null,
    events text[] not null,
    created_at timestamptz not null default now(),
    removed_at timestamptz
);
create index ix_webhooks_tenant_id on webhooks (tenant_id);

-- One event for one webhook: written in the transaction that ends the run, sent after it. A run that is retried ends again. Attempts are counted before they
-- are made; next_attempt_at says when another one is due should nobody tell how this one went.
create table webhook_deliveries (
    id uuid constraint pk_webhook_deliveries primary key,
    tenant_id uuid not null,
    webhook_id uuid not null constraint fk_webhook_deliveries_webhook_id_webhooks references webhooks (id),
    run_id uuid not null constraint fk_webhook_deliveries_run_id_runs references runs (id),
    run_finished_at timestamptz not null,
    event text not null,
    body text not null,
    state text not null default 'pending'
        constraint ck_webhook_deliveries_state check (state in ('pending', 'delivered', 'dead')),
    attempts integer not null default 0,
    status integer,
    error text,
    created_at timestamptz not null default now(),
    next_attempt_at timestamptz not null default now(),
    finished_at timestamptz,
    constraint uq_webhook_deliveries_webhook_id_run_id_run_finished_at unique (webhook_id, run_id, run_finished_at)
);
create index ix_webhook_deliveries_tenant_id_id on webhook_deliveries (tenant_id, id);
create index ix_webhook_deliveries_due on webhook_deliveries (next_attempt_at) where state = 'pending';

do $$
declare
    v_table text;
begin
    foreach v_table in array array['webhooks', 'webhook_deliveries'] loop
        execute format('alter table %I enable row level security', v_table);
        execute format('alter table %I force row level security', v_table);
        execute format($policy$
            create policy tenant on %I
                using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
                with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
        $policy$, v_table);
    end loop;
end $$;
grant select, insert on webhooks, webhook_deliveries to palimpsest_service;
grant update (removed_at) on webhooks to palimpsest_service;
grant update (state, attempts, status, error, next_attempt_at, finished_at) on webhook_deliveries to palimpsest_service;
grant select (id, tenant_id, state, next_attempt_at) on webhook_deliveries to palimpsest_background;
create policy background on webhook_deliveries for select to palimpsest_background using (true);

-- For the sweeper: deliveries of any tenant whose time has come.
create function due_deliveries(p_limit integer) returns table (delivery_id uuid, tenant_id uuid)
language sql stable security definer set search_path = pg_catalog, public as $$
    select d.id, d.tenant_id from public.webhook_deliveries as d
    where d.state = 'pending' and d.next_attempt_at <= now()
    order by d.next_attempt_at limit p_limit
$$;
grant create on schema public to palimpsest_background;
alter function due_deliveries(integer) owner to palimpsest_background;
revoke create on schema public from palimpsest_background;
revoke execute on function due_deliveries(integer) from public;
grant execute on function due_deliveries(integer) to palimpsest_service;
