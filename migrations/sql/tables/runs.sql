-- squawk-ignore-file require-concurrent-index-creation -- the tables are new and empty
-- The jobs. A run by hand may have a strategy and instructions. A run after an overflow starts from the version before it
-- (base_version) and has to stay within what the model took (target_tokens). A run for a context block (block_id) does not
-- count as the conversation's active one.
create table runs (
    id uuid constraint pk_runs primary key,
    tenant_id uuid not null,
    conversation_id uuid not null
        constraint fk_runs_conversation_id_conversations references conversations (id),
    trigger text not null
        constraint ck_runs_trigger check (trigger in (
            'check', 'pause', 'manual', 'overflow', 'budget', 'context_block', 'pin', 'restore', 'fork', 'import')),
    state text not null
        constraint ck_runs_state check (state in ('queued', 'running', 'committed', 'skipped', 'degraded', 'failed', 'dead')),
    queue text not null constraint ck_runs_queue check (queue in ('checks', 'summaries')),
    reason text,
    error text,
    policy jsonb not null,
    request_id uuid,
    attempts integer not null default 0,
    lease_token uuid,
    lease_expires_at timestamptz,
    worker text,
    parent_version integer,
    snapshot_version integer,
    tokens_before integer,
    tokens_after integer,
    messages_before integer,
    messages_after integer,
    created_at timestamptz not null default now(),
    queued_at timestamptz not null default now(),
    started_at timestamptz,
    finished_at timestamptz,
    strategy text,
    instructions text,
    base_version integer,
    target_tokens integer,
    block_id uuid constraint fk_runs_block_id_context_blocks references context_blocks (id),
    -- The most that calls under way may cost, and the cost of ended ones until their step is recorded. Reservations count while
    -- the lease holds, so those of a dead worker expire with it.
    reserved_tokens bigint not null default 0,
    reserved_cost_usd numeric(14, 6) not null default 0,
    not_before timestamptz,
    -- What the run does. The trigger runs_kind fills it in where an insert leaves it out.
    kind text constraint ck_runs_kind
        check (kind in ('ladder', 'manual', 'recovery', 'context_block', 'request')),
    -- The process that holds the lease: when the process is known to have ended, the lease expires at once.
    process_id uuid
);
create unique index uq_runs_active on runs (conversation_id)
    where state in ('queued', 'running') and block_id is null;
create unique index uq_runs_active_block on runs (block_id) where state in ('queued', 'running');
create index ix_runs_conversation_id_id on runs (conversation_id, id);
create index ix_runs_active on runs (state, queued_at) where state in ('queued', 'running');
-- Lists of a tenant's runs, and of its dead ones.
create index ix_runs_tenant_id_id on runs (tenant_id, id);
create index ix_runs_dead on runs (tenant_id, id) where state = 'dead';
-- Removing a context block looks for runs that name it.
create index ix_runs_block_id on runs (block_id) where block_id is not null;
create index ix_runs_failed on runs (tenant_id, id) where state in ('degraded', 'failed');
alter table runs alter column error set statistics 0, alter column policy set statistics 0,
    alter column instructions set statistics 0;
alter table runs enable row level security, force row level security;
create policy tenant on runs
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy auditor on runs for select to palimpsest_auditor using (true);
create policy background on runs for select to palimpsest_background using (true);
create policy background_offers on runs for update to palimpsest_background using (true) with check (true);
create policy background_removes on runs for delete to palimpsest_background using (true);
grant select, insert, update on runs to palimpsest_service;
grant select (id, tenant_id, conversation_id, trigger, state, queue, reason, policy, attempts, lease_expires_at, worker,
    created_at, queued_at, finished_at, block_id, reserved_tokens, reserved_cost_usd, process_id), update (state, reason,
    error, policy, lease_token, lease_expires_at, queued_at, finished_at, instructions, block_id, reserved_tokens,
    reserved_cost_usd), delete on runs to palimpsest_background;
grant select (id, tenant_id, conversation_id, trigger, state, reason, request_id, attempts, worker, tokens_before,
    tokens_after, messages_before, messages_after, created_at, started_at, finished_at) on runs to palimpsest_auditor;

-- The steps of a run, each with its outcome and its model calls: the audit.
create table run_steps (
    tenant_id uuid not null,
    run_id uuid not null constraint fk_run_steps_run_id_runs references runs (id),
    step_no integer not null,
    name text not null,
    state text not null constraint ck_run_steps_state check (state in ('committed', 'skipped', 'failed')),
    reason text,
    detail text,
    error text,
    attempt integer not null,
    snapshot_version integer,
    tokens_before integer not null,
    tokens_after integer not null,
    messages_before integer not null,
    messages_after integer not null,
    results_cut integer,
    summarizer text,
    model text,
    prompt_version text,
    model_calls integer not null default 0,
    model_input_tokens integer,
    model_output_tokens integer,
    cost_usd numeric(14, 6),
    duration_ms integer not null,
    created_at timestamptz not null default now(),
    shared_tokens integer,
    constraint pk_run_steps primary key (run_id, step_no)
);
alter table run_steps alter column detail set statistics 0, alter column error set statistics 0;
alter table run_steps enable row level security, force row level security;
create policy tenant on run_steps
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy auditor on run_steps for select to palimpsest_auditor using (true);
create policy background_erases on run_steps for update to palimpsest_background using (true) with check (true);
create policy background_reads on run_steps for select to palimpsest_background using (true);
create policy background_removes on run_steps for delete to palimpsest_background using (true);
grant select, insert on run_steps to palimpsest_service;
grant select (run_id), update (detail, error), delete on run_steps to palimpsest_background;
grant select (tenant_id, run_id, step_no, name, state, reason, attempt, snapshot_version, tokens_before, tokens_after,
    messages_before, messages_after, results_cut, summarizer, model, prompt_version, model_calls, model_input_tokens,
    model_output_tokens, cost_usd, duration_ms, created_at) on run_steps to palimpsest_auditor;

-- Summaries that wait for another day's budget, each with the run that ran out of it: of a conversation, to be made from
-- base_version, or of a context block. done_at is set when the summary is no longer needed.
create table waiting_summaries (
    run_id uuid constraint pk_waiting_summaries primary key
        constraint fk_waiting_summaries_run_id_runs references runs (id) on delete cascade,
    tenant_id uuid not null,
    conversation_id uuid not null
        constraint fk_waiting_summaries_conversation_id_conversations references conversations (id) on delete cascade,
    block_id uuid
        constraint fk_waiting_summaries_block_id_context_blocks references context_blocks (id) on delete cascade,
    base_version integer,
    not_before timestamptz not null,
    created_at timestamptz not null default now(),
    done_at timestamptz
);
create unique index uq_waiting_summaries_conversation_id on waiting_summaries (conversation_id)
    where block_id is null and done_at is null;
create unique index uq_waiting_summaries_block_id on waiting_summaries (block_id) where done_at is null;
-- Done ones too: the removal of a block looks for them.
create index ix_waiting_summaries_block_id on waiting_summaries (block_id) where block_id is not null;
create index ix_waiting_summaries_tenant_id on waiting_summaries (tenant_id) where done_at is null;
create index ix_waiting_summaries_not_before on waiting_summaries (not_before) where done_at is null;
alter table waiting_summaries enable row level security, force row level security;
create policy tenant on waiting_summaries
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background on waiting_summaries for select to palimpsest_background using (true);
grant select, insert, update (not_before, done_at) on waiting_summaries to palimpsest_service;
grant select on waiting_summaries to palimpsest_background;


-- Model calls of a tenant by day (UTC). count_model_usage writes it in the transaction that records a step, so that it is the
-- sum of the audit.
create table model_usage (
    tenant_id uuid,
    day date,
    model_calls bigint not null default 0,
    input_tokens bigint not null default 0,
    output_tokens bigint not null default 0,
    cost_usd numeric(16, 6) not null default 0,
    constraint pk_model_usage primary key (tenant_id, day)
) with (fillfactor = 50);
alter table model_usage enable row level security, force row level security;
create policy tenant on model_usage
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background on model_usage to palimpsest_background using (true) with check (true);
grant select on model_usage to palimpsest_service;
grant select, insert, update on model_usage to palimpsest_background;

-- Processes with their heartbeats; summarizer and model are those of a worker's own environment. Rows hold nothing
-- of a tenant, and may be lost.
create table processes (
    id uuid constraint pk_processes primary key,
    kind text not null constraint ck_processes_kind check (kind in ('worker', 'beat', 'api', 'gateway')),
    host text not null,
    pid integer not null,
    queues text[] not null,
    version text not null,
    slots integer not null,
    busy integer not null default 0,
    oldest_task_at timestamptz,
    started_at timestamptz not null default now(),
    seen_at timestamptz not null default now(),
    summarizer text,
    model text
) with (fillfactor = 50);
grant select, insert, update (busy, oldest_task_at, seen_at), delete on processes to palimpsest_service;
