-- Keys that are rotated, when each was last used, and tenants found by the name in a token.
alter table api_keys add column last_used_at timestamptz, add column replaced_by uuid;
grant update (replaced_by) on api_keys to palimpsest_service;

grant select (last_used_at), update (last_used_at) on api_keys to palimpsest_background;
create policy background_notes on api_keys for update to palimpsest_background using (true) with check (true);
grant select (name) on tenants to palimpsest_background;

-- Who is asking: one key by its public id, and for how long it may be remembered. The caller compares the hash.
create function key_in_force(p_key uuid) returns table (
    tenant_id uuid, secret_hash bytea, scopes text[], policy text, seconds_left double precision
) language sql stable security definer set search_path = pg_catalog, public as $$
    select k.tenant_id, k.secret_hash, k.scopes, t.policy::text, extract(epoch from k.expires_at - now())::float8
    from public.api_keys as k join public.tenants as t on t.id = k.tenant_id
    where k.id = p_key and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
$$;

-- Who is asking with a token: its tenant, by id or, where that is null, by name.
create function tenant_of_token(p_id uuid, p_name text) returns table (tenant_id uuid, policy text)
language sql stable security definer set search_path = pg_catalog, public as $$
    select t.id, t.policy::text from public.tenants as t where t.id = p_id or (p_id is null and t.name = p_name)
$$;

-- Note when keys were last used; at most once a minute each, whoever asks. A key that another process is noting at this
-- moment is left to it: nobody waits.
create function note_key_uses(p_keys uuid[], p_seconds_ago double precision[]) returns void
language sql security definer set search_path = pg_catalog, public as $$
    update public.api_keys as noted set last_used_at = now() - make_interval(secs => used.seconds_ago)
    from (select k.id, u.seconds_ago
          from unnest(p_keys, p_seconds_ago) as u (id, seconds_ago) join public.api_keys as k on k.id = u.id
          where k.last_used_at is null
             or k.last_used_at < now() - make_interval(secs => u.seconds_ago) - interval '1 minute'
          for no key update of k skip locked) as used
    where noted.id = used.id
$$;

grant create on schema public to palimpsest_background;
alter function key_in_force(uuid) owner to palimpsest_background;
alter function tenant_of_token(uuid, text) owner to palimpsest_background;
alter function note_key_uses(uuid[], double precision[]) owner to palimpsest_background;
revoke create on schema public from palimpsest_background;
revoke execute on function key_in_force(uuid), tenant_of_token(uuid, text),
    note_key_uses(uuid[], double precision[]) from public;
grant execute on function key_in_force(uuid), tenant_of_token(uuid, text),
    note_key_uses(uuid[], double precision[]) to palimpsest_service;
