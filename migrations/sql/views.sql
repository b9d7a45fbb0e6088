-- Views: snapshots as the code reads and writes them, and what auditors may read.

-- Snapshots with their messages as a whole, for all who read and write them. A snapshot mostly shows what the one before it
-- showed, byte for byte: that is stored once, in the parts of snapshot_parts.
create or replace view snapshots with (security_invoker = true) as
select p.tenant_id, p.conversation_id, p.version, p.parent_version, p.run_id, p.step, p.covers_through,
       coalesce(p.messages, (coalesce((
           select string_agg(earlier.part, '')
           from (select e.part from public.snapshot_parts as e
                 where e.conversation_id = p.conversation_id and e.version between p.follows[1] and p.version
                     and e.version = any (p.follows)
                 order by e.version) as earlier), '') || p.part || ']')::json) as messages,
       p.seqs, p.coverage, p.summary, p.summarizer, p.tokens, p.message_count, p.bytes, p.exchanges, p.prefix_hash,
       p.created_at, p.pins, p.claims, p.media
from public.snapshot_parts as p;
alter view snapshots alter column created_at set default now();
alter view snapshots alter column pins set default '[]';
grant select, insert on snapshots to palimpsest_service;

-- For auditors: a row a step, in order; a row with an empty step for a run that has none yet. A step that puts a pin's text
-- back saves nothing.
create or replace view compaction_history with (security_invoker = true) as
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

-- For auditors: a row a conversation, erased ones included: what is stored, what is served, and what that has cost.
create or replace view conversation_costs with (security_invoker = true) as
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
       ran.degraded as runs_degraded,
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
               count(*) filter (where r.state = 'degraded') as degraded,
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

-- For auditors: what became of each message, a row for each change. A snapshot that covers less than those before it, as a
-- restore makes it, shows messages again that these had covered: then they are `kept` again.
create or replace view message_lineage with (security_invoker = true) as
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
            select s.version, s.parent_version, s.run_id, s.coverage, s.step, s.created_at
            from snapshot_parts as s where s.conversation_id = c.id and s.version = c.head_version
            union all
            select s.version, s.parent_version, s.run_id, s.coverage, s.step, s.created_at
            from snapshot_parts as s join chain on s.version = chain.parent_version
            where s.conversation_id = c.id
        ), covering as (
            select ends.*, max(ends.through) over (order by ends.version rows between unbounded preceding and 1 preceding)
                       as before
            from (select chain.*, coalesce((select max((span.value ->> 1)::integer)
                                            from jsonb_array_elements(chain.coverage) as span), -1) as through
                  from chain) as ends
        ), fates as (
            select m.seq, 0 as version, 'kept' as fate, null::uuid as run_id, null as step, m.created_at as at
            from messages as m where m.conversation_id = c.id
            union all
            select covered.seq, chain.version, span.value ->> 2, (span.value ->> 3)::uuid, chain.step, chain.created_at
            from chain
                cross join lateral jsonb_array_elements(chain.coverage) as span
                cross join lateral
                    generate_series((span.value ->> 0)::integer, (span.value ->> 1)::integer) as covered (seq)
            union all
            select shown.seq, back.version, 'kept', back.run_id, back.step, back.created_at
            from covering as back
                cross join lateral generate_series(back.through + 1, back.before) as shown (seq)
        ), changed as (
            select f.*, lag(f.fate) over (partition by f.seq order by f.version) is distinct from f.fate as is_new
            from fates as f
        )
        select m.seq, m.role, m.tokens, m.superseded_at, d.version, d.fate, d.run_id, d.step, d.at
        from changed as d join messages as m on m.conversation_id = c.id and m.seq = d.seq
        where d.is_new
    ) as told;

-- For auditors: who asked when for which messages, without the text asked for.
create or replace view recalls with (security_invoker = true) as
select t.name as tenant,
       r.conversation_id,
       r.id as recall_id,
       r.request_id,
       r.key_id,
       r.origin,
       r.of_user,
       r.kind,
       r.refs,
       r.seqs,
       r.left_by,
       r.left_in,
       cardinality(r.seqs) as messages,
       (select count(*) from unnest(r.left_by) as step (name) where step.name is not null) as messages_out_of_context,
       r.searched,
       r.tokens,
       r.created_at as asked_at
from recall_requests as r join tenants as t on t.id = r.tenant_id;

-- For auditors: a row a call, with the tokens that a cache should have had and those that the provider read from it. If many
-- are missing and the prefix was the same, compaction did not break the cache.
create or replace view prompt_cache_turns with (security_invoker = true) as
select t.name as tenant,
       u.conversation_id,
       u.seq,
       u.snapshot_version,
       u.answered_at,
       u.input_tokens,
       u.output_tokens,
       u.cached_tokens,
       u.written_tokens,
       u.prefix_tokens,
       u.expected_tokens,
       greatest(0, u.expected_tokens - u.cached_tokens) as missing_tokens,
       u.saved_tokens,
       u.cost_usd,
       u.saved_usd,
       u.saved_uncached_usd
from turn_usages as u join tenants as t on t.id = u.tenant_id;

-- For auditors: a row for each conversation and day (UTC), with what its calls took in and what compaction saved. Expected
-- tokens are summed over the calls whose usage names cached tokens, so that both can be compared.
create or replace view compaction_savings with (security_invoker = true) as
select t.name as tenant,
       u.conversation_id,
       (u.answered_at at time zone 'utc')::date as day,
       count(*) as calls,
       sum(u.input_tokens) as input_tokens,
       sum(u.cached_tokens) as cached_tokens,
       sum(u.expected_tokens) filter (where u.cached_tokens is not null) as expected_tokens,
       sum(u.saved_tokens) as saved_tokens,
       sum(u.cost_usd) as cost_usd,
       sum(u.saved_usd) as saved_usd,
       sum(u.saved_uncached_usd) as saved_uncached_usd,
       count(u.cached_tokens) as calls_with_cache_counts
from turn_usages as u join tenants as t on t.id = u.tenant_id
group by t.name, u.conversation_id, 3;

-- For auditors: a row for each line of a summary that says something.
create or replace view claims with (security_invoker = true) as
select t.name as tenant,
       s.conversation_id,
       s.version,
       s.run_id,
       (claim.value ->> 0)::integer as line,
       array(select seq.value::integer from jsonb_array_elements_text(claim.value -> 1) as seq)::integer[] as seqs,
       claim.value ->> 2 as support,
       s.created_at
from snapshot_parts as s
    join tenants as t on t.id = s.tenant_id
    cross join lateral jsonb_array_elements(s.claims) as claim;

grant select on claims, compaction_history, compaction_savings, conversation_costs, message_lineage, prompt_cache_turns, recalls
    to palimpsest_auditor;
