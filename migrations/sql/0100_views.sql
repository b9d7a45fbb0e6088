-- What auditors read: views without a word that anybody wrote, over all tenants. docs/audit.md has their columns and the
-- questions that they answer.

-- One row a step, in the order of their making; one row with an empty step for a run that has none yet. A step that puts text
-- back, a pin's, saves nothing: counted as the console, the command and the metrics do.
create view compaction_history with (security_invoker = true) as
select t.name as tenant,
       r.conversation_id,
       r.id as run_id,
       r.trigger,
       r.state as run_state,
       r.reason as run_reason,
       r.attempts,
       r.worker,
       r.request_id,
       r.created_at as asked_at,
       r.started_at,
       r.finished_at,
       s.step_no,
       s.name as step,
       s.state as step_state,
       s.reason as step_reason,
       s.attempt,
       s.snapshot_version,
       coalesce(s.snapshot_version = c.head_version, false) as is_head,
       coalesce(s.messages_before, r.messages_before) as messages_before,
       coalesce(s.messages_after, r.messages_after) as messages_after,
       coalesce(s.tokens_before, r.tokens_before) as tokens_before,
       coalesce(s.tokens_after, r.tokens_after) as tokens_after,
       case when s.state = 'committed' then greatest(0, s.tokens_before - s.tokens_after) else 0 end as tokens_saved,
       s.results_cut,
       s.summarizer,
       s.model,
       s.prompt_version,
       coalesce(s.model_calls, 0) as model_calls,
       coalesce(s.model_input_tokens, 0) as model_input_tokens,
       coalesce(s.model_output_tokens, 0) as model_output_tokens,
       s.cost_usd,
       s.duration_ms,
       s.created_at as done_at
from runs as r
    join tenants as t on t.id = r.tenant_id
    join conversations as c on c.id = r.conversation_id
    left join run_steps as s on s.run_id = r.id;

-- One row a conversation, those that were erased included: what is stored of it, what is served, what that has cost.
create view conversation_costs with (security_invoker = true) as
select t.name as tenant,
       c.id as conversation_id,
       c.external_id,
       c.user_ref,
       c.created_at,
       c.erased_at,
       c.turn_count as turns,
       stored.messages as messages_stored,
       stored.superseded as messages_superseded,
       stored.tokens as tokens_stored,
       c.context_tokens as tokens_served,
       stored.tokens - c.context_tokens as tokens_saved_per_call,
       c.head_version,
       ran.runs,
       ran.failed as runs_failed,
       spent.model_calls,
       spent.model_input_tokens,
       spent.model_output_tokens,
       spent.cost_usd,
       ran.last_run_at
from conversations as c
    join tenants as t on t.id = c.tenant_id
    cross join lateral (
        select count(*) as messages,
               count(m.superseded_at) as superseded,
               coalesce(sum(m.tokens) filter (where m.superseded_at is null), 0) as tokens
        from messages as m where m.conversation_id = c.id
    ) as stored
    cross join lateral (
        select count(*) as runs,
               count(*) filter (where r.state in ('failed', 'dead')) as failed,
               max(r.created_at) as last_run_at
        from runs as r where r.conversation_id = c.id
    ) as ran
    cross join lateral (
        select coalesce(sum(s.model_calls), 0) as model_calls,
               coalesce(sum(s.model_input_tokens), 0) as model_input_tokens,
               coalesce(sum(s.model_output_tokens), 0) as model_output_tokens,
               coalesce(sum(s.cost_usd), 0) as cost_usd
        from runs as r join run_steps as s on s.run_id = r.id where r.conversation_id = c.id
    ) as spent;

-- What became of each message on the way to the head: a row as it was stored (version 0), and one for each snapshot that
-- changed its fate. Ask for one conversation at a time: without that it is every message of every tenant.
create view message_lineage with (security_invoker = true) as
select t.name as tenant,
       c.id as conversation_id,
       told.seq,
       told.role,
       told.tokens,
       told.superseded_at,
       told.version,
       told.fate,
       told.run_id,
       told.step,
       told.at
from conversations as c
    join tenants as t on t.id = c.tenant_id
    cross join lateral (
        with recursive chain as (
            select s.version, s.parent_version, s.coverage, s.step, s.created_at
            from snapshot_parts as s where s.conversation_id = c.id and s.version = c.head_version
            union all
            select s.version, s.parent_version, s.coverage, s.step, s.created_at
            from snapshot_parts as s join chain on s.version = chain.parent_version
            where s.conversation_id = c.id
        ), fates as (
            select m.seq, 0 as version, 'kept' as fate, null::uuid as run_id, null as step, m.created_at as at
            from messages as m where m.conversation_id = c.id
            union all
            select covered.seq, chain.version, span.value ->> 2, (span.value ->> 3)::uuid, chain.step, chain.created_at
            from chain
                cross join lateral jsonb_array_elements(chain.coverage) as span
                cross join lateral
                    generate_series((span.value ->> 0)::integer, (span.value ->> 1)::integer) as covered (seq)
        ), changed as (
            select f.*, lag(f.fate) over (partition by f.seq order by f.version) is distinct from f.fate as is_new
            from fates as f
        )
        select m.seq, m.role, m.tokens, m.superseded_at, d.version, d.fate, d.run_id, d.step, d.at
        from changed as d join messages as m on m.conversation_id = c.id and m.seq = d.seq
        where d.is_new
    ) as told;
