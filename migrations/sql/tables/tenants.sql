-- squawk-ignore-file require-concurrent-index-creation -- the tables are new and empty
-- In all tables: `set statistics 0` keeps the planner from sampling columns with words of tenants. Samples quote values, and stay
-- after the rows are erased. No query plans by these columns: those that are searched have an index of their own.
-- Row-level security is forced, so it binds the owner too: a transaction sees the tenant that it names in `app.tenant_id`. After
-- a transaction that set it, the setting reads as an empty string, hence nullif.

-- Tenants, and the limits that an operator sets for each.
create table tenants (
    id uuid constraint pk_tenants primary key,
    name text not null,
    policy jsonb not null default '{}',
    created_at timestamptz not null default now(),
    -- What the operator allows a tenant; null = what the installation allows, 0 and '' = no limit. The services may read
    -- these columns and never change them: no key of a tenant can raise its own limits.
    rate_limit_key text,
    rate_limit_tenant text,
    daily_model_tokens bigint,
    daily_model_cost_usd numeric(14, 6),
    limits_changed_at timestamptz,
    constraint uq_tenants_name unique (name)
);
alter table tenants alter column policy set statistics 0;
alter table tenants enable row level security, force row level security;
create policy tenant on tenants
    using (id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy auditor on tenants for select to palimpsest_auditor using (true);
create policy background on tenants for select to palimpsest_background using (true);
grant select, insert, update (name, policy) on tenants to palimpsest_service;
grant select (id, name, policy, rate_limit_key, rate_limit_tenant, limits_changed_at) on tenants to palimpsest_background;
grant select (id, name) on tenants to palimpsest_auditor;

-- API keys. Only a hash of the secret is stored.
create table api_keys (
    id uuid constraint pk_api_keys primary key,
    tenant_id uuid not null constraint fk_api_keys_tenant_id_tenants references tenants (id),
    name text not null,
    secret_hash bytea not null,
    scopes text[] not null,
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz,
    replaced_by uuid
);
create index ix_api_keys_tenant_id on api_keys (tenant_id);
alter table api_keys alter column name set statistics 0, alter column secret_hash set statistics 0;
alter table api_keys enable row level security, force row level security;
create policy tenant on api_keys
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background on api_keys for select to palimpsest_background using (true);
create policy background_notes on api_keys for update to palimpsest_background using (true) with check (true);
grant select, insert, update (expires_at, revoked_at, replaced_by) on api_keys to palimpsest_service;
grant select (id, tenant_id, secret_hash, scopes, expires_at, revoked_at, last_used_at), update (last_used_at) on api_keys
    to palimpsest_background;
