drop view message_lineage;
drop view conversation_costs;
drop view compaction_history;
do $$
declare
    v_table text;
begin
    foreach v_table in array array['tenants', 'conversations', 'messages', 'runs', 'run_steps', 'snapshots'] loop
        execute format('drop policy auditor on %I', v_table);
    end loop;
end $$;
-- What it was granted in this database. The role stays: other databases of the same server may use it.
revoke all on all tables in schema public from palimpsest_auditor;
revoke usage on schema public from palimpsest_auditor;
