-- The planner's statistics quote what is frequent in a column, and some of the rest. What was erased stood there until the next
-- ANALYZE, and for good in a table that became empty, which ANALYZE passes over. No query plans by these columns: all
-- that are searched for have an index of their own. (Of type json the server keeps no values.)
alter table tenants alter column policy set statistics 0;
alter table api_keys alter column name set statistics 0, alter column secret_hash set statistics 0;
alter table conversations
    alter column external_id set statistics 0, alter column user_ref set statistics 0,
    alter column model set statistics 0, alter column policy set statistics 0,
    alter column metadata set statistics 0, alter column open_calls set statistics 0;
alter table idempotency_keys alter column key set statistics 0, alter column body_hash set statistics 0;
alter table runs
    alter column error set statistics 0, alter column policy set statistics 0,
    alter column instructions set statistics 0;
alter table run_steps alter column detail set statistics 0, alter column error set statistics 0;
alter table snapshot_parts
    alter column coverage set statistics 0, alter column summary set statistics 0,
    alter column prefix_hash set statistics 0, alter column pins set statistics 0, alter column part set statistics 0;
alter table context_blocks
    alter column source set statistics 0, alter column title set statistics 0, alter column text set statistics 0,
    alter column digest set statistics 0, alter column outline set statistics 0, alter column summary set statistics 0;
alter table pins alter column text set statistics 0;
alter table webhooks alter column url set statistics 0, alter column secret set statistics 0;
alter table webhook_deliveries alter column body set statistics 0, alter column error set statistics 0;
alter table model_batches
    alter column fingerprint set statistics 0, alter column canary set statistics 0,
    alter column answers set statistics 0, alter column error set statistics 0;
alter table console_sessions alter column token_hash set statistics 0;

-- What was collected before stays where it is unless somebody takes it away.
do $$
declare
    v_column record;
begin
    for v_column in
        select c.oid as relation, c.relname::text as "table", a.attname::text as name, a.attnum as number
        from pg_class as c join pg_attribute as a on a.attrelid = c.oid
        where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and a.attnum > 0
            and not a.attisdropped and a.attstattarget = 0
    loop
        if to_regproc('pg_catalog.pg_clear_attribute_stats') is not null then
            execute format(
                'select pg_catalog.pg_clear_attribute_stats(schemaname => %L, relname => %L, attname => %L, '
                'inherited => false)', 'public', v_column."table", v_column.name);
        else
            delete from pg_catalog.pg_statistic as s
                where s.starelid = v_column.relation and s.staattnum = v_column.number;
        end if;
    end loop;
exception when insufficient_privilege then
    raise notice 'statistics collected before this revision stay until a superuser removes them; see docs/operations.md';
end $$;
