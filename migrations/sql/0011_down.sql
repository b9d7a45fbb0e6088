-- Functions go back to the path of revision 0010; the names of types in them may keep their schema.
do $$
declare
    v_function record;
begin
    for v_function in
        select p.oid::regprocedure as name, p.prosecdef as definer from pg_proc as p
        where p.pronamespace = 'public'::regnamespace and 'search_path=pg_catalog, public, pg_temp' = any (p.proconfig)
    loop
        if v_function.definer then
            execute format('alter function %s set search_path = pg_catalog, public', v_function.name);
        else
            execute format('alter function %s reset search_path', v_function.name);
        end if;
    end loop;
end $$;

do $$
begin
    execute format('grant temporary on database %I to public', current_database());
exception when insufficient_privilege then
    raise notice 'only the owner of this database can do this: grant temporary on database % to public',
        current_database();
end $$;

drop trigger api_keys_stay_closed on api_keys;
drop trigger console_sessions_stay_ended on console_sessions;
drop function guard_keys(), guard_sessions();

alter table tenants alter column policy set statistics -1;
alter table api_keys alter column name set statistics -1, alter column secret_hash set statistics -1;
alter table conversations
    alter column external_id set statistics -1, alter column user_ref set statistics -1,
    alter column model set statistics -1, alter column policy set statistics -1,
    alter column metadata set statistics -1, alter column open_calls set statistics -1;
alter table idempotency_keys alter column key set statistics -1, alter column body_hash set statistics -1;
alter table runs
    alter column error set statistics -1, alter column policy set statistics -1,
    alter column instructions set statistics -1;
alter table run_steps alter column detail set statistics -1, alter column error set statistics -1;
alter table snapshot_parts
    alter column coverage set statistics -1, alter column summary set statistics -1,
    alter column prefix_hash set statistics -1, alter column pins set statistics -1, alter column part set statistics -1;
alter table context_blocks
    alter column source set statistics -1, alter column title set statistics -1, alter column text set statistics -1,
    alter column digest set statistics -1, alter column outline set statistics -1, alter column summary set statistics -1;
alter table pins alter column text set statistics -1;
alter table webhooks alter column url set statistics -1, alter column secret set statistics -1;
alter table webhook_deliveries alter column body set statistics -1, alter column error set statistics -1;
alter table model_batches
    alter column fingerprint set statistics -1, alter column canary set statistics -1,
    alter column answers set statistics -1, alter column error set statistics -1;
alter table console_sessions alter column token_hash set statistics -1;
