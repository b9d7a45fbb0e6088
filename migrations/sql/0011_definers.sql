-- A search path that does not name pg_temp begins with it, for tables and types. Whoever could make a temporary domain
-- named `uuid` had its check run as palimpsest_background. Three doors, each closed by itself: pg_temp comes last, types that
-- are no keywords are named with their schema, and nobody but the owner may make anything temporary.
do $$
declare
    v_function record;
    v_source text;
begin
    for v_function in
        select p.oid::regprocedure as name, p.prosrc as source, pg_get_functiondef(p.oid) as definition
        from pg_proc as p where p.pronamespace = 'public'::regnamespace and p.prosecdef
    loop
        v_source := regexp_replace(
            v_function.source, '::(uuid|text|date|float8|timestamptz|jsonb|bytea)\M', '::pg_catalog.\1', 'g');
        v_source := regexp_replace(
            v_source, '^( +v_\w+ (?:constant )?)(uuid|text|date|float8|timestamptz|jsonb|bytea|record)\M',
            '\1pg_catalog.\2', 'gn');
        if v_source <> v_function.source then
            execute replace(v_function.definition, v_function.source, v_source);
        end if;
        execute format('alter function %s set search_path = pg_catalog, public, pg_temp', v_function.name);
    end loop;
    -- The guards too, which hold whoever writes: with that one's path they would read what was put in their way.
    for v_function in
        select p.oid::regprocedure as name from pg_proc as p
        where p.pronamespace = 'public'::regnamespace and p.prorettype = 'trigger'::regtype and not p.prosecdef
    loop
        execute format('alter function %s set search_path = pg_catalog, public, pg_temp', v_function.name);
    end loop;
end $$;

do $$
begin
    execute format('revoke temporary on database %I from public', current_database());
exception when insufficient_privilege then
    raise notice 'only the owner of this database can do this: revoke temporary on database % from public',
        current_database();
end $$;
