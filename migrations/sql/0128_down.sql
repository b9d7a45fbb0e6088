do $$
begin
    grant execute on function lo_creat(integer), lo_create(oid), lo_from_bytea(oid, bytea) to public;
exception when insufficient_privilege then
    raise notice 'only a superuser can do this: grant execute on function lo_creat(integer), lo_create(oid), '
                 'lo_from_bytea(oid, bytea) to public';
end $$;
