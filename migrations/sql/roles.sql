-- The three roles that the schema names. Nobody logs in as one of them. Services take on palimpsest_service: it owns nothing,
-- and row-level security is forced on it. palimpsest_background owns the few functions that look across tenants, and may read,
-- column by column, nothing that was said in a conversation. palimpsest_auditor reads the views of views.sql, and of the tables
-- only what those need.
do $$
declare
    v_role text;
begin
    foreach v_role in array array['palimpsest_service', 'palimpsest_background', 'palimpsest_auditor'] loop
        -- Roles belong to the whole server: an administrator, or another database's migration, may have made them.
        if not exists (select from pg_roles where rolname = v_role) then
            begin
                execute format('create role %I nologin nosuperuser nobypassrls', v_role);
            exception
                when duplicate_object or unique_violation then
                    null;
                when insufficient_privilege then
                    raise exception 'the role % is missing, and this login may not create it', v_role
                        using errcode = 'insufficient_privilege',
                              hint = format('As an administrator: create role %I nologin nosuperuser nobypassrls', v_role);
            end;
        end if;
        -- A login that may act as the role already (a superuser, or a member) cannot always grant it. From Postgres 16 on, the
        -- login that created a role is a member of it and may grant it, but not act as it.
        if v_role <> 'palimpsest_auditor' and not pg_has_role(
            v_role, case when current_setting('server_version_num')::integer < 160000 then 'member' else 'set' end) then
            execute format('grant %I to current_user', v_role);
        end if;
    end loop;
end $$;
grant usage on schema public to palimpsest_service, palimpsest_background, palimpsest_auditor;
-- Readiness compares the revision with the one that the code was written for.
grant select on alembic_version to palimpsest_service;
