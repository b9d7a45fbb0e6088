-- Two roles that nobody logs in as. Services take on palimpsest_service: it owns nothing and row-level security is
-- forced on it. palimpsest_background owns the few functions that have to look across tenants.
do $$
declare
    v_role text;
begin
    foreach v_role in array array['palimpsest_service', 'palimpsest_background'] loop
        -- Roles belong to the whole server: an administrator, or another database's migration, may have made them.
        if not exists (select from pg_roles where rolname = v_role) then
            begin
                execute format('create role %I nologin nosuperuser nobypassrls', v_role);
            exception when duplicate_object or unique_violation then
                null;
            end;
        end if;
        -- Whoever may act as the role already (a superuser, or somebody it was granted to) cannot always grant it.
        if not pg_has_role(v_role, 'member') then
            execute format('grant %I to current_user', v_role);
        end if;
    end loop;
end $$;

grant usage on schema public to palimpsest_service, palimpsest_background;
grant select, insert on tenants, api_keys, conversations, messages, idempotency_keys, runs, run_steps, snapshots
    to palimpsest_service;
grant update on conversations, runs to palimpsest_service;
grant update (name, policy) on tenants to palimpsest_service;
grant update (revoked_at, expires_at) on api_keys to palimpsest_service;
grant update (superseded_at) on messages to palimpsest_service;

do $$
declare
    v_table text;
begin
    foreach v_table in array array['api_keys', 'conversations', 'messages', 'idempotency_keys', 'runs', 'run_steps',
                                   'snapshots'] loop
        execute format('alter table %I enable row level security', v_table);
        execute format('alter table %I force row level security', v_table);
        -- nullif: after a transaction that set it, the setting reads as an empty string, not as null.
        execute format($policy$
            create policy tenant on %I
                using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
                with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
        $policy$, v_table);
    end loop;
end $$;
alter table tenants enable row level security;
alter table tenants force row level security;
create policy tenant on tenants
    using (id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (id = nullif(current_setting('app.tenant_id', true), '')::uuid);

-- Column by column: nothing that a client wrote is among them.
grant select (id, policy) on tenants to palimpsest_background;
grant select (id, tenant_id, secret_hash, scopes, expires_at, revoked_at) on api_keys to palimpsest_background;
grant select (id, tenant_id, policy, revision, head_version, pending_version, context_tokens, fixed_tokens,
              token_ratio, context_bytes, measured_tokens, measured_version, newest_result, results_cut_through,
              tool_results_hold, summary_hold, trim_hold, check_due_at)
    on conversations to palimpsest_background;
grant update (check_due_at) on conversations to palimpsest_background;
grant select (id, tenant_id, conversation_id, state, queued_at, lease_expires_at) on runs to palimpsest_background;
create policy background on tenants for select to palimpsest_background using (true);
create policy background on api_keys for select to palimpsest_background using (true);
create policy background on conversations to palimpsest_background using (true) with check (true);
create policy background on runs for select to palimpsest_background using (true);

-- Who is asking: one key by its public id. The caller compares the hash.
create function find_api_key(p_key uuid) returns table (
    tenant_id uuid, secret_hash bytea, scopes text[], policy text
) language sql stable security definer set search_path = pg_catalog, public as $$
    select k.tenant_id, k.secret_hash, k.scopes, t.policy::text
    from public.api_keys as k join public.tenants as t on t.id = k.tenant_id
    where k.id = p_key and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
$$;

-- In the next two, `(… is null) is false` keeps the planner off the partial index of due checks: it would read all that are
-- due for every batch, instead of the batch by its ids.

-- What a check has to know, for many conversations of many tenants at once. With p_lock nothing is appended to them
-- before the transaction ends; ids are locked in order, so that two checkers cannot wait for each other.
create function check_states(p_conversations uuid[], p_lock boolean) returns table (
    conversation_id uuid, tenant_id uuid, tenant_policy jsonb, policy jsonb, revision bigint,
    estimated integer, measured integer, context_bytes bigint, has_old_results boolean,
    tool_results_hold integer, summary_hold integer, trim_hold integer,
    pending_version integer, has_active_run boolean
) language plpgsql security definer set search_path = pg_catalog, public as $$
begin
    if p_lock then
        perform from public.conversations as c where c.id = any (p_conversations) order by c.id for no key update;
    end if;
    return query
    select c.id, c.tenant_id, t.policy, c.policy, c.revision, ceil((c.context_tokens + c.fixed_tokens) * c.token_ratio)::integer,
           case when c.measured_version = c.head_version then c.measured_tokens end,
           c.context_bytes, c.newest_result > c.results_cut_through,
           c.tool_results_hold, c.summary_hold, c.trim_hold, c.pending_version,
           exists (select from public.runs as r
                   where r.conversation_id = c.id and r.state in ('queued', 'running'))
    from public.conversations as c join public.tenants as t on t.id = c.tenant_id
    where c.id = any (p_conversations) and (c.check_due_at is null) is false;
end $$;

-- Take the mark off conversations that need nothing, unless something was appended since their state was read.
create function clear_checks(p_conversations uuid[], p_revisions bigint[]) returns setof uuid
language sql security definer set search_path = pg_catalog, public as $$
    update public.conversations as c set check_due_at = null
    from unnest(p_conversations, p_revisions) as seen (id, revision)
    where c.id = seen.id and c.revision = seen.revision and (c.check_due_at is null) is false
    returning c.id
$$;

-- For the sweeper: due checks whose wake-up got lost, oldest first.
create function overdue_checks(p_seconds double precision, p_limit integer) returns table (conversation_id uuid)
language sql stable security definer set search_path = pg_catalog, public as $$
    select c.id from public.conversations as c
    where c.check_due_at < now() - make_interval(secs => p_seconds)
    order by c.check_due_at limit p_limit
$$;

-- For the sweeper: runs nobody works on any more, and queued runs that nobody came for.
create function stranded_runs(p_seconds double precision, p_limit integer) returns table (
    run_id uuid, tenant_id uuid
) language sql stable security definer set search_path = pg_catalog, public as $$
    select r.id, r.tenant_id from public.runs as r
    where (r.state = 'running' and r.lease_expires_at < now())
       or (r.state = 'queued' and r.queued_at < now() - make_interval(secs => p_seconds))
    order by r.queued_at limit p_limit
$$;

-- A new owner needs the right to create in the schema at the moment of the change, and only then.
grant create on schema public to palimpsest_background;
alter function find_api_key(uuid) owner to palimpsest_background;
alter function check_states(uuid[], boolean) owner to palimpsest_background;
alter function clear_checks(uuid[], bigint[]) owner to palimpsest_background;
alter function overdue_checks(double precision, integer) owner to palimpsest_background;
alter function stranded_runs(double precision, integer) owner to palimpsest_background;
revoke create on schema public from palimpsest_background;

revoke execute on function find_api_key(uuid), check_states(uuid[], boolean), clear_checks(uuid[], bigint[]),
    overdue_checks(double precision, integer), stranded_runs(double precision, integer) from public;
grant execute on function find_api_key(uuid), check_states(uuid[], boolean), clear_checks(uuid[], bigint[]),
    overdue_checks(double precision, integer), stranded_runs(double precision, integer) to palimpsest_service;
