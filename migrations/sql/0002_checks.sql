grant select (block_id) on runs to palimpsest_background;

-- The name of a model is not a part of what was said.
grant select (model, counted_cap) on conversations to palimpsest_background;

-- As check_states of revision 0001, with the model, whose window the policy begins from, and the cap on tool results that the
-- context was counted with: the one in force may be another since, by the tenant's policy or the installation's. A run for a context block does not
-- count as an active one.
create function due_states(p_conversations uuid[], p_lock boolean) returns table (
    conversation_id uuid, tenant_id uuid, tenant_policy jsonb, policy jsonb, model text, revision bigint,
    estimated integer, measured integer, context_bytes bigint, has_old_results boolean,
    tool_results_hold integer, summary_hold integer, trim_hold integer,
    pending_version integer, has_active_run boolean, counted_cap integer
) language plpgsql security definer set search_path = pg_catalog, public as $$
begin
    if p_lock then
        perform from public.conversations as c where c.id = any (p_conversations) order by c.id for no key update;
    end if;
    return query
    select c.id, c.tenant_id, t.policy, c.policy, c.model, c.revision,
           ceil((c.context_tokens + c.fixed_tokens) * c.token_ratio)::integer,
           case when c.measured_version = c.head_version then c.measured_tokens end,
           c.context_bytes, c.newest_result > c.results_cut_through,
           c.tool_results_hold, c.summary_hold, c.trim_hold, c.pending_version,
           exists (select from public.runs as r
                   where r.conversation_id = c.id and r.state in ('queued', 'running') and r.block_id is null),
           c.counted_cap
    from public.conversations as c join public.tenants as t on t.id = c.tenant_id
    where c.id = any (p_conversations) and (c.check_due_at is null) is false;
end $$;

grant create on schema public to palimpsest_background;
alter function due_states(uuid[], boolean) owner to palimpsest_background;
revoke create on schema public from palimpsest_background;
revoke execute on function due_states(uuid[], boolean) from public;
grant execute on function due_states(uuid[], boolean) to palimpsest_service;

-- For services of revision 0001.
create or replace function check_states(p_conversations uuid[], p_lock boolean) returns table (
    conversation_id uuid, tenant_id uuid, tenant_policy jsonb, policy jsonb, revision bigint,
    estimated integer, measured integer, context_bytes bigint, has_old_results boolean,
    tool_results_hold integer, summary_hold integer, trim_hold integer,
    pending_version integer, has_active_run boolean
) language plpgsql security definer set search_path = pg_catalog, public as $$
begin
    return query
    select s.conversation_id, s.tenant_id, s.tenant_policy, s.policy, s.revision, s.estimated, s.measured,
           s.context_bytes, s.has_old_results, s.tool_results_hold, s.summary_hold, s.trim_hold, s.pending_version,
           s.has_active_run
    from public.due_states(p_conversations, p_lock) as s;
end $$;
