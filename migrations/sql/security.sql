-- Functions that act as palimpsest_background, and that services alone may call; triggers need no caller. Each has a search
-- path that ends with pg_temp: a path that does not name it begins with it, for tables and types, and a temporary domain named
-- `uuid` would have its check run as that role. For the same reason types that are no keywords are named with their schema in
-- them, and only the owner may make temporary objects. A new owner needs the right to create in the schema at the moment of
-- the change, and only then.
grant create on schema public to palimpsest_background;
do $$
declare
    v_function text;
begin
    foreach v_function in array array[
        'due_states', 'clear_checks', 'overdue_checks_by_turns', 'over_by_fixed', 'watch_pauses', 'cold_snapshots',
        'stranded_runs_by_turns', 'may_summarize', 'offer_summary', 'expire_leases',
        'due_waiting_summaries',
        'due_deliveries', 'usages_to_reckon', 'model_spending', 'model_totals', 'backlog', 'waiting_work',
        'key_in_force', 'tenant_of_token', 'note_key_uses', 'rate_limits_since', 'find_console_session', 'take_console_ticket',
        'erase_conversation', 'tenants_with_retention', 'expire_rows', 'expire_runs', 'expire_snapshots',
        'count_model_usage', 'forget_media'
    ] loop
        execute format('alter function %I owner to palimpsest_background', v_function);
        execute format('revoke execute on function %I from public', v_function);
        continue when v_function in ('count_model_usage', 'forget_media');
        execute format('grant execute on function %I to palimpsest_service', v_function);
    end loop;
end $$;
revoke create on schema public from palimpsest_background;

do $$
begin
    execute format('revoke temporary on database %I from public', current_database());
exception when insufficient_privilege then
    raise notice 'only the owner of this database can do this: revoke temporary on database % from public',
        current_database();
end $$;

-- In a new database everybody may create large objects, which belong to no tenant. An owner of the database who is no
-- superuser cannot take the right away: Postgres answers with a warning then, and docs/security.md names the command.
do $$
begin
    revoke execute on function lo_creat(integer), lo_create(oid), lo_from_bytea(oid, bytea) from public;
exception when insufficient_privilege then
    raise notice 'only a superuser can do this: revoke execute on function lo_creat(integer), lo_create(oid), '
                 'lo_from_bytea(oid, bytea) from public';
end $$;
