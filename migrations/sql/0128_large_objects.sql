-- Everybody may create large objects in a new database. They belong to no tenant. An owner of the database who is no
-- superuser cannot take the right away: Postgres answers with a warning then, and docs/security.md names the command.
do $$
begin
    revoke execute on function lo_creat(integer), lo_create(oid), lo_from_bytea(oid, bytea) from public;
exception when insufficient_privilege then
    raise notice 'only a superuser can do this: revoke execute on function lo_creat(integer), lo_create(oid), '
                 'lo_from_bytea(oid, bytea) from public';
end $$;
