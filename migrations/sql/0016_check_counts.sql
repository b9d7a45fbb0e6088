-- As the function of revision 0002 with two columns more, which services of older revisions do not ask for: what is stored by
-- the estimate alone, in which holds are measured, and whether the API counted anything since the last request.
-- squawk-ignore ban-drop-function -- made anew in this transaction, with columns that nobody has to ask for
drop function due_states(uuid[], boolean);
create function due_states(p_conversations uuid[], p_lock boolean) returns table (
    conversation_id uuid, tenant_id uuid, tenant_policy jsonb, policy jsonb, model text, revision bigint,
    estimated integer, measured integer, context_bytes bigint, has_old_results boolean,
    tool_results_hold integer, summary_hold integer, trim_hold integer,
    pending_version integer, has_active_run boolean, counted_cap integer,
    stored integer, is_counted boolean
) language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
begin
    if p_lock then
        perform from public.conversations as c where c.id = any (p_conversations) order by c.id for no key update;
    end if;
    return query
    select c.id, c.tenant_id, t.policy, c.policy, c.model, c.revision,
           ceil((c.context_tokens + c.fixed_tokens) * c.token_ratio)::integer + c.unstored_tokens,
           case when c.measured_version = c.head_version then c.measured_tokens end,
           c.context_bytes, c.newest_result > c.results_cut_through,
           c.tool_results_hold, c.summary_hold, c.trim_hold, c.pending_version,
           exists (select from public.runs as r
                   where r.conversation_id = c.id and r.state in ('queued', 'running') and r.block_id is null),
           c.counted_cap, c.context_tokens + c.fixed_tokens, c.last_request < c.measured_seq
    from public.conversations as c join public.tenants as t on t.id = c.tenant_id
    where c.id = any (p_conversations) and (c.check_due_at is null) is false;
end $$;

-- For the doctor: conversations in which system prompt and tools alone are over a threshold, the conversation's, the
-- tenant's, or the installation's that is given. Reads every conversation's row.
create function over_by_fixed(p_threshold integer, p_budget integer, out over_threshold bigint, out over_budget bigint)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select count(*) filter (where beside.tokens > coalesce((c.policy ->> 'compaction_threshold_tokens')::integer,
                                                           (t.policy ->> 'compaction_threshold_tokens')::integer, p_threshold)),
           count(*) filter (where limits.budget > 0 and beside.tokens > limits.budget)
    from public.conversations as c join public.tenants as t on t.id = c.tenant_id,
         lateral (select (c.fixed_tokens - c.carried_tokens) * c.token_ratio + c.unstored_tokens as tokens) as beside,
         lateral (select coalesce((c.policy ->> 'input_token_budget')::integer,
                                  (t.policy ->> 'input_token_budget')::integer, p_budget) as budget) as limits
$$;

grant select (carried_tokens) on conversations to palimpsest_background;
grant select (unstored_tokens, measured_seq, last_request) on conversations to palimpsest_background;
grant create on schema public to palimpsest_background;
alter function due_states(uuid[], boolean) owner to palimpsest_background;
alter function over_by_fixed(integer, integer) owner to palimpsest_background;
revoke create on schema public from palimpsest_background;
revoke execute on function due_states(uuid[], boolean), over_by_fixed(integer, integer) from public;
grant execute on function due_states(uuid[], boolean), over_by_fixed(integer, integer) to palimpsest_service;
