drop function due_deliveries(integer);
drop table webhook_deliveries, webhooks;
do $$
declare
    v_function regprocedure;
begin
    -- The functions that go by a name of revision 0001 with other arguments, and those that are this revision's own.
    for v_function in
        select p.oid::regprocedure from pg_proc as p
        where p.pronamespace = 'public'::regnamespace
          and (p.proname in ('recount_carried', 'add_context_blocks', 'recount_results', 'shown_tokens', 'due_states',
                            'exchange_request')
               or (p.proname = 'append_turn' and 'p_blocks' = any (p.proargnames))
               or (p.proname = 'read_context' and 'p_inline_tags' = any (p.proargnames)))
    loop
        execute 'drop function ' || v_function;
    end loop;
end $$;
-- As revision 0001 has it.
create or replace function tail_start(
    p_conversation uuid, p_covers integer, p_last_request integer, p_room double precision, p_factor double precision
) returns integer language plpgsql stable as $$
declare
    v_start integer;
    v_tokens double precision := 0;
    m record;
begin
    for m in select seq, role, is_request, view_tokens from public.messages
             where conversation_id = p_conversation and seq > p_covers and superseded_at is null
             order by seq desc loop
        v_tokens := v_tokens + m.view_tokens * p_factor;
        exit when v_tokens > p_room and v_start is not null;
        if m.is_request or (m.role = 'assistant' and m.seq > p_last_request) then
            v_start := m.seq;
        end if;
    end loop;
    return coalesce(v_start, p_covers + 1);
end $$;
-- The owner is bound by row-level security too; these statements are about every tenant.
alter table conversations no force row level security;
alter table runs no force row level security;
alter table run_steps no force row level security;
update conversations set fixed_tokens = fixed_tokens - carried_tokens where carried_tokens > 0;
delete from run_steps where run_id in (select id from runs where block_id is not null);
delete from runs where block_id is not null;
drop index uq_runs_active_block;
drop index uq_runs_active;
alter table runs drop column strategy, drop column instructions, drop column base_version, drop column target_tokens,
    drop column block_id;
create unique index uq_runs_active on runs (conversation_id) where state in ('queued', 'running');
revoke select (model, counted_cap) on conversations from palimpsest_background;
drop table context_blocks, assemblies, pins;
alter table snapshots drop column pins;
alter table conversations drop column carried_tokens, drop column turn_context_tokens, drop column held_by_restore,
    drop column counted_cap;
alter table conversations force row level security;
alter table runs force row level security;
alter table run_steps force row level security;
