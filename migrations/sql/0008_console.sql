-- Who is signed in to the console. A session stands for the key that began it and ends with it; a ticket is a sign-in that
-- may be taken once. Nothing of what the browser holds is kept but its hash.
create table console_sessions (
    token_hash bytea constraint pk_console_sessions primary key,
    tenant_id uuid not null,
    key_id uuid not null constraint fk_console_sessions_key_id_api_keys references api_keys (id),
    is_ticket boolean not null default false,
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    ended_at timestamptz
);
-- squawk-ignore-file require-concurrent-index-creation -- the tables are new and empty
create index ix_console_sessions_expires_at on console_sessions (expires_at);

-- What operators did, for good: ids and numbers, none of what anybody said. It outlives the erasure of the conversation.
create table operator_actions (
    id uuid constraint pk_operator_actions primary key,
    tenant_id uuid not null,
    key_id uuid not null,
    action text not null constraint ck_operator_actions_action
        check (action in ('sign_in', 'sign_out', 'compact', 'restore', 'retry', 'demo')),
    outcome text not null,
    conversation_id uuid,
    run_id uuid,
    version integer,
    request_id uuid not null,
    created_at timestamptz not null default now()
);
create index ix_operator_actions_tenant_id_id on operator_actions (tenant_id, id);
create trigger operator_actions_immutable before update or delete on operator_actions
    for each row execute function guard_snapshots();
create trigger operator_actions_no_truncate before truncate on operator_actions
    for each statement execute function guard_snapshots();

do $$
declare
    v_table text;
begin
    foreach v_table in array array['console_sessions', 'operator_actions'] loop
        execute format('alter table %I enable row level security', v_table);
        execute format('alter table %I force row level security', v_table);
        execute format($policy$
            create policy tenant on %I
                using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
                with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
        $policy$, v_table);
    end loop;
end $$;
grant select, insert on console_sessions, operator_actions to palimpsest_service;
grant update (ended_at) on console_sessions to palimpsest_service;
grant select, delete on console_sessions to palimpsest_background;
grant update (ended_at) on console_sessions to palimpsest_background;
create policy background on console_sessions to palimpsest_background using (true) with check (true);

-- Who is asking: the session of a token, as long as it and its key are in force.
create function find_console_session(p_token_hash bytea) returns table (
    tenant_id uuid, key_id uuid, scopes text[], policy text
) language sql stable security definer set search_path = pg_catalog, public as $$
    select k.tenant_id, k.id, k.scopes, t.policy::text
    from public.console_sessions as s
        join public.api_keys as k on k.id = s.key_id
        join public.tenants as t on t.id = k.tenant_id
    where s.token_hash = p_token_hash and not s.is_ticket and s.ended_at is null and s.expires_at > now()
        and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
$$;

-- Take a ticket: the key that it signs in, or no row. Of two that come with the same ticket one gets it.
create function take_console_ticket(p_token_hash bytea) returns table (tenant_id uuid, key_id uuid)
language sql security definer set search_path = pg_catalog, public as $$
    update public.console_sessions as s set ended_at = now()
    from public.api_keys as k
    where s.token_hash = p_token_hash and s.is_ticket and s.ended_at is null and s.expires_at > now()
        and k.id = s.key_id and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
    returning s.tenant_id, s.key_id
$$;

-- Remove sessions whose time was over a day ago, some at a time.
create function expire_console_sessions(p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, public as $$
declare
    v_removed integer;
begin
    delete from public.console_sessions as s
        where s.token_hash = any (array(
            select o.token_hash from public.console_sessions as o
            where o.expires_at < now() - interval '1 day'
            order by o.expires_at limit p_limit for update skip locked));
    get diagnostics v_removed = row_count;
    return v_removed;
end $$;

grant create on schema public to palimpsest_background;
alter function find_console_session(bytea) owner to palimpsest_background;
alter function take_console_ticket(bytea) owner to palimpsest_background;
alter function expire_console_sessions(integer) owner to palimpsest_background;
revoke create on schema public from palimpsest_background;
revoke execute on function find_console_session(bytea), take_console_ticket(bytea), expire_console_sessions(integer)
    from public;
grant execute on function find_console_session(bytea), take_console_ticket(bytea), expire_console_sessions(integer)
    to palimpsest_service;
