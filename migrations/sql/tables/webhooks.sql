-- squawk-ignore-file require-concurrent-index-creation -- the tables are new and empty
-- Addresses to which events of a tenant's runs are sent.
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
alter table webhooks alter column url set statistics 0, alter column secret set statistics 0;
alter table webhooks enable row level security, force row level security;
create policy tenant on webhooks
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert, update (removed_at) on webhooks to palimpsest_service;

-- One event for one webhook: written in the transaction that ends the run, sent after it. A run that is retried ends again.
-- Attempts are counted before they are made; next_attempt_at is when the next one is due if the outcome stays unknown.
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
create index ix_webhook_deliveries_run_id on webhook_deliveries (run_id);
create index ix_webhook_deliveries_dead on webhook_deliveries (tenant_id, id) where state = 'dead';
alter table webhook_deliveries alter column body set statistics 0, alter column error set statistics 0;
alter table webhook_deliveries enable row level security, force row level security;
create policy tenant on webhook_deliveries
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background on webhook_deliveries for select to palimpsest_background using (true);
create policy background_locks on webhook_deliveries for update to palimpsest_background using (true) with check (true);
create policy background_removes on webhook_deliveries for delete to palimpsest_background using (true);
grant select, insert, update (state, attempts, status, error, next_attempt_at, finished_at) on webhook_deliveries to
    palimpsest_service;
grant select (id, tenant_id, run_id, state, next_attempt_at, finished_at), update (finished_at), delete on
    webhook_deliveries to palimpsest_background;
