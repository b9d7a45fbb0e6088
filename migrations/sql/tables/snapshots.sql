-- squawk-ignore-file require-concurrent-index-creation -- the tables are new and empty
-- Snapshots as they are stored; the view `snapshots` shows them whole. `part` is JSON without the closing bracket, so that
-- parts are joined as text; `follows` lists the versions whose parts come before it. A row with its text in `messages` is
-- whole by itself, and nothing follows it.
create table snapshot_parts (
    tenant_id uuid not null,
    conversation_id uuid not null
        constraint fk_snapshots_conversation_id_conversations references conversations (id),
    version integer not null,
    parent_version integer not null,
    run_id uuid constraint fk_snapshots_run_id_runs references runs (id),
    step text not null,
    covers_through integer not null,
    messages json,
    seqs integer[] not null,
    coverage jsonb not null,
    summary text,
    summarizer text,
    tokens integer not null,
    message_count integer not null,
    bytes integer not null,
    exchanges integer not null,
    prefix_hash bytea not null,
    created_at timestamptz not null default now(),
    -- The pins that stand in the first message because their own messages are not shown any more.
    pins jsonb not null default '[]',
    part text,
    follows integer[] not null default '{}',
    -- What the lines of the summary rest on: [[line, [seqs], support], ...], lines numbered from 0. It holds no words of the
    -- conversation, so auditors may read it. Null if nothing is known.
    claims jsonb,
    -- Media of the messages that it shows, in the order of the columns of message_media; null if they are not known.
    media bigint[],
    constraint pk_snapshots primary key (conversation_id, version)
);
-- To find out whether a snapshot names a run that is to be removed.
create index ix_snapshots_run_id on snapshot_parts (run_id);
alter table snapshot_parts alter column coverage set statistics 0, alter column summary set statistics 0,
    alter column prefix_hash set statistics 0, alter column pins set statistics 0, alter column part set statistics 0,
    alter column claims set statistics 0;
alter table snapshot_parts enable row level security, force row level security;
create policy tenant on snapshot_parts
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy auditor on snapshot_parts for select to palimpsest_auditor using (true);
create policy background_reads on snapshot_parts for select to palimpsest_background using (true);
create policy background_removes on snapshot_parts for delete to palimpsest_background using (true);
grant select, insert on snapshot_parts to palimpsest_service;
grant select (conversation_id, version, parent_version, run_id, covers_through, created_at, media), delete on snapshot_parts
    to palimpsest_background;
grant select (tenant_id, conversation_id, version, parent_version, run_id, step, coverage, created_at, claims) on
    snapshot_parts to palimpsest_auditor;

-- Finished snapshots that wait until moving the head pays; compaction/cost decides when. One a conversation: a newer one takes
-- its place. Head, edits and pins that it was made from stand beside it; once they differ, it is no longer used. A row without
-- a version is a conversation to check in its next pause, when its prompt cache is cold.
create table waiting_snapshots (
    conversation_id uuid constraint pk_waiting_snapshots primary key
        constraint fk_waiting_snapshots_conversation_id_conversations references conversations (id),
    tenant_id uuid not null,
    -- Null if no snapshot waits.
    version integer,
    head_version integer not null,
    edits integer not null,
    pins uuid[] not null,
    -- Lifetime of the prompt cache in seconds, and when it is cold if no turn comes until then.
    lifetime integer not null,
    cold_at timestamptz not null
);
create index ix_waiting_snapshots_cold_at on waiting_snapshots (cold_at);
alter table waiting_snapshots enable row level security, force row level security;
create policy tenant on waiting_snapshots
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background_erases on waiting_snapshots to palimpsest_background using (true) with check (true);
grant select, insert, update (version, head_version, edits, pins, lifetime, cold_at) on waiting_snapshots to
    palimpsest_service;
grant select (conversation_id, tenant_id, version, lifetime, cold_at), insert, update (lifetime, cold_at), delete on
    waiting_snapshots to palimpsest_background;
