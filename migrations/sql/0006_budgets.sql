-- What the operator allows a tenant; null = what the installation allows, 0 and '' = no limit. The services may read these
-- columns and never change them: no key of a tenant can raise its own limits.
alter table tenants
    add column rate_limit_key text,
    add column rate_limit_tenant text,
    add column daily_model_tokens bigint,
    add column daily_model_cost_usd numeric(14, 6),
    add column limits_changed_at timestamptz;

-- What a tenant's model calls came to on a day (UTC). Written by the trigger below alone, in the transaction that records a
-- step, so that it is always the sum of the audit.
create table model_usage (
    tenant_id uuid,
    day date,
    model_calls bigint not null default 0,
    input_tokens bigint not null default 0,
    output_tokens bigint not null default 0,
    cost_usd numeric(16, 6) not null default 0,
    constraint pk_model_usage primary key (tenant_id, day)
) with (fillfactor = 50);
alter table model_usage enable row level security;
alter table model_usage force row level security;
create policy tenant on model_usage
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background on model_usage to palimpsest_background using (true) with check (true);
grant select on model_usage to palimpsest_service;
grant select, insert, update on model_usage to palimpsest_background;

-- What calls under way may cost at most, and what those that have ended cost until their step is recorded. It counts while the
-- run's lease holds, or the batch is open: what a worker leaves behind that died comes free by itself.
alter table runs
    add column reserved_tokens bigint not null default 0,
    add column reserved_cost_usd numeric(14, 6) not null default 0,
    add column not_before timestamptz;
alter table model_batches
    add column reserved_tokens bigint not null default 0,
    add column reserved_cost_usd numeric(14, 6) not null default 0;
grant update (reserved_tokens, reserved_cost_usd) on model_batches to palimpsest_service;
grant select (reserved_tokens, reserved_cost_usd), update (reserved_tokens, reserved_cost_usd) on runs
    to palimpsest_background;

create function count_model_usage() returns trigger
language plpgsql security definer set search_path = pg_catalog, public as $$
declare
    v_tokens constant bigint := coalesce(new.model_input_tokens, 0) + coalesce(new.model_output_tokens, 0);
begin
    insert into public.model_usage as u (tenant_id, day, model_calls, input_tokens, output_tokens, cost_usd)
    values (new.tenant_id, (now() at time zone 'utc')::date, new.model_calls, coalesce(new.model_input_tokens, 0),
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

-- Summaries that wait for another day's budget, each with the run that met its end: of a conversation, to be made from
-- base_version, or of a context block. One that nobody waits for any more is done.
create table waiting_summaries (
    run_id uuid constraint pk_waiting_summaries primary key
        constraint fk_waiting_summaries_run_id_runs references runs (id) on delete cascade,
    tenant_id uuid not null,
    conversation_id uuid not null
        constraint fk_waiting_summaries_conversation_id_conversations references conversations (id) on delete cascade,
    block_id uuid
        constraint fk_waiting_summaries_block_id_context_blocks references context_blocks (id) on delete cascade,
    base_version integer,
    not_before timestamptz not null,
    created_at timestamptz not null default now(),
    done_at timestamptz
);
-- squawk-ignore-file require-concurrent-index-creation -- the table is new and empty
create unique index uq_waiting_summaries_conversation_id on waiting_summaries (conversation_id)
    where block_id is null and done_at is null;
create unique index uq_waiting_summaries_block_id on waiting_summaries (block_id) where done_at is null;
-- Also of what is done: a block that is erased is looked for here.
create index ix_waiting_summaries_block_id on waiting_summaries (block_id) where block_id is not null;
create index ix_waiting_summaries_tenant_id on waiting_summaries (tenant_id) where done_at is null;
create index ix_waiting_summaries_not_before on waiting_summaries (not_before) where done_at is null;
alter table waiting_summaries enable row level security;
alter table waiting_summaries force row level security;
create policy tenant on waiting_summaries
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background on waiting_summaries for select to palimpsest_background using (true);
grant select, insert on waiting_summaries to palimpsest_service;
grant update (not_before, done_at) on waiting_summaries to palimpsest_service;
grant select on waiting_summaries to palimpsest_background;
grant select (rate_limit_key, rate_limit_tenant, limits_changed_at) on tenants to palimpsest_background;

-- For the sweeper: waiting summaries of any tenant whose time has come; tenants take turns.
create function due_waiting_summaries(p_limit integer) returns table (run_id uuid, tenant_id uuid)
language sql stable security definer set search_path = pg_catalog, public as $$
    select w.run_id, w.tenant_id from public.waiting_summaries as w where w.done_at is null and w.not_before <= now()
    order by row_number() over (partition by w.tenant_id order by w.created_at, w.run_id), w.created_at limit p_limit
$$;

-- For the API: rate limits of any tenant that were set since then.
create function rate_limits_since(p_since timestamptz) returns table (
    tenant_id uuid, per_key text, per_tenant text, changed_at timestamptz
) language sql stable security definer set search_path = pg_catalog, public as $$
    select t.id, t.rate_limit_key, t.rate_limit_tenant, t.limits_changed_at
    from public.tenants as t where t.limits_changed_at > p_since
$$;

-- What was spent today and what waits, over all tenants, as numbers.
create function model_spending() returns table (tokens bigint, cost_usd numeric, waiting_summaries bigint)
language sql stable security definer set search_path = pg_catalog, public as $$
    select coalesce(sum(u.input_tokens + u.output_tokens), 0)::bigint, coalesce(sum(u.cost_usd), 0),
           (select count(*) from public.waiting_summaries as w where w.done_at is null)
    from public.model_usage as u where u.day = (now() at time zone 'utc')::date
$$;

grant create on schema public to palimpsest_background;
alter function count_model_usage() owner to palimpsest_background;
alter function due_waiting_summaries(integer) owner to palimpsest_background;
alter function rate_limits_since(timestamptz) owner to palimpsest_background;
alter function model_spending() owner to palimpsest_background;
revoke create on schema public from palimpsest_background;
revoke execute on function count_model_usage(), due_waiting_summaries(integer), rate_limits_since(timestamptz),
    model_spending() from public;
grant execute on function due_waiting_summaries(integer), rate_limits_since(timestamptz), model_spending()
    to palimpsest_service;
