-- Checks: across tenants, by the columns that palimpsest_background may read.

-- In this and the next, `(… is null) is false` keeps the planner off the partial index of due checks: it would read all that
-- are due for every batch, instead of the batch by its ids.

-- What a check has to know, for many conversations of many tenants at once. With p_lock nothing is appended to them before
-- the transaction ends; ids are locked in order, so that two checkers cannot wait for each other. The policy begins from the
-- model's window; counted_cap is the cap on tool results that the context was counted with: the one in force may be another
-- since, by the tenant's policy or the installation's. `stored` is what is stored by the estimate alone, in which holds are
-- measured; is_counted, whether the API counted anything since the last request. A run for a context block does not count as
-- an active one.
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

-- Take the mark off conversations that need nothing, unless something was appended since their state was read. The commit
-- does not wait for the disk: a crash may bring marks back, which costs a check each and nothing else, since what was appended
-- later is later in the log as well.
create function clear_checks(p_conversations uuid[], p_revisions bigint[]) returns setof uuid
language sql security definer set search_path = pg_catalog, public, pg_temp as $$
    select set_config('synchronous_commit', 'off', true);
    update public.conversations as c set check_due_at = null
    from unnest(p_conversations, p_revisions) as seen (id, revision)
    where c.id = seen.id and c.revision = seen.revision and (c.check_due_at is null) is false
    returning c.id
$$;

-- For the sweeper: due checks whose wake-up got lost. Tenants take turns, so that one with very many does not keep the
-- others waiting; nth is a check's place among its tenant's own.
create function overdue_checks_by_turns(p_seconds double precision, p_limit integer) returns table (
    conversation_id uuid, tenant_id uuid, due_at timestamptz, nth bigint
) language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select c.id, c.tenant_id, c.check_due_at,
           row_number() over (partition by c.tenant_id order by c.check_due_at, c.id) as nth
    from public.conversations as c
    where c.check_due_at < now() - make_interval(secs => p_seconds)
    order by nth, c.check_due_at limit p_limit
$$;

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
