-- Return an API key that is in force, by its public id, and for how long it may be cached. The caller compares the hash.
create or replace function key_in_force(p_key uuid) returns table (
    tenant_id uuid, secret_hash bytea, scopes text[], policy text, seconds_left double precision
) language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select k.tenant_id, k.secret_hash, k.scopes, t.policy::pg_catalog.text, extract(epoch from k.expires_at - now())::pg_catalog.float8
    from public.api_keys as k join public.tenants as t on t.id = k.tenant_id
    where k.id = p_key and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
$$;

-- Return the tenant that a token names, by id or, if that is null, by name.
create or replace function tenant_of_token(p_id uuid, p_name text) returns table (tenant_id uuid, policy text)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select t.id, t.policy::pg_catalog.text from public.tenants as t where t.id = p_id or (p_id is null and t.name = p_name)
$$;

-- Note when keys were last used, at most once a minute each. A key that another process is noting is skipped.
create or replace function note_key_uses(p_keys uuid[], p_seconds_ago double precision[]) returns void
language sql security definer set search_path = pg_catalog, public, pg_temp as $$
    update public.api_keys as noted set last_used_at = now() - make_interval(secs => used.seconds_ago)
    from (select k.id, u.seconds_ago
          from unnest(p_keys, p_seconds_ago) as u (id, seconds_ago) join public.api_keys as k on k.id = u.id
          where k.last_used_at is null
             or k.last_used_at < now() - make_interval(secs => u.seconds_ago) - interval '1 minute'
          for no key update of k skip locked) as used
    where noted.id = used.id
$$;

-- Return rate limits of any tenant that were set since then.
create or replace function rate_limits_since(p_since timestamptz) returns table (
    tenant_id uuid, per_key text, per_tenant text, changed_at timestamptz
) language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select t.id, t.rate_limit_key, t.rate_limit_tenant, t.limits_changed_at
    from public.tenants as t where t.limits_changed_at > p_since
$$;

-- Return the session of a token if it and its key are in force.
create or replace function find_console_session(p_token_hash bytea) returns table (
    tenant_id uuid, key_id uuid, scopes text[], policy text
) language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select k.tenant_id, k.id, k.scopes, t.policy::pg_catalog.text
    from public.console_sessions as s
        join public.api_keys as k on k.id = s.key_id
        join public.tenants as t on t.id = k.tenant_id
    where s.token_hash = p_token_hash and not s.is_ticket and s.ended_at is null and s.expires_at > now()
        and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
$$;

-- Take a ticket and return the key that it signs in; no row if it was taken before.
create or replace function take_console_ticket(p_token_hash bytea) returns table (tenant_id uuid, key_id uuid)
language sql security definer set search_path = pg_catalog, public, pg_temp as $$
    update public.console_sessions as s set ended_at = now()
    from public.api_keys as k
    where s.token_hash = p_token_hash and s.is_ticket and s.ended_at is null and s.expires_at > now()
        and k.id = s.key_id and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
    returning s.tenant_id, s.key_id
$$;
