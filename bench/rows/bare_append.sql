-- The product's own append, on tables of its own, without what the product asks of it beyond storing a turn: no row-level
-- security, no due check and no index of due checks; and it is called without an idempotency key.
create schema bench;
create table bench.conversations (like public.conversations including all)
    with (fillfactor = 70, toast_tuple_target = 512, autovacuum_vacuum_scale_factor = 0.02);
create table bench.messages (like public.messages including all);
do $$
declare
    v_index regclass;
    v_function text;
    v_due constant text := 'check_due_at = coalesce\(.*?check_request_id = case .*? end,';
    v_tenant constant text := 'perform set_config\(''app\.tenant_id''[^;]*;';
begin
    for v_index in select indexrelid::regclass from pg_index
                   where indrelid = 'bench.conversations'::regclass
                     and pg_get_indexdef(indexrelid) like '%check_due_at%' loop
        execute format('drop index %s', v_index);
    end loop;
    select pg_get_functiondef(oid) into strict v_function
    from pg_proc where proname = 'append_turn' and pronamespace = 'public'::regnamespace and 'p_sent' = any (proargnames);
    assert v_function ~ v_due and v_function ~ v_tenant, 'append_turn is not what it was';
    v_function := regexp_replace(regexp_replace(v_function, v_due, ''), v_tenant, '');
    execute regexp_replace(v_function, 'public\.(append_turn|conversations|messages)', 'bench.\1', 'g');
end $$;
