-- squawk-ignore-file require-concurrent-index-creation -- the tables are new and empty
-- Context that came with a turn and is not history. seq is the turn's last request, or its last message. carried_until is the
-- seq of the turn that ended the carry-over, by a newer block of the source or by too many of them; an edit that supersedes
-- that turn undoes it.
create table context_blocks (
    id uuid constraint pk_context_blocks primary key,
    tenant_id uuid not null,
    conversation_id uuid not null
        constraint fk_context_blocks_conversation_id_conversations references conversations (id),
    seq integer not null,
    position integer not null,
    source text not null,
    title text not null,
    text text not null,
    digest bytea not null,
    outline text not null,
    summary text,
    summarized_at timestamptz,
    tokens integer not null,
    outline_tokens integer not null,
    created_at timestamptz not null default now(),
    carried_until integer,
    superseded_at timestamptz,
    constraint uq_context_blocks_conversation_id_seq_position unique (conversation_id, seq, position)
);
create index ix_context_blocks_conversation_id_digest on context_blocks (conversation_id, digest);
create index ix_context_blocks_carried on context_blocks (conversation_id)
    where carried_until is null and superseded_at is null;
alter table context_blocks alter column source set statistics 0, alter column title set statistics 0,
    alter column text set statistics 0, alter column digest set statistics 0, alter column outline set statistics 0,
    alter column summary set statistics 0;
alter table context_blocks enable row level security, force row level security;
create policy tenant on context_blocks
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background_erases on context_blocks to palimpsest_background using (true) with check (true);
grant select, insert, update (summary, summarized_at, carried_until, superseded_at) on context_blocks to palimpsest_service;
grant select (conversation_id), delete on context_blocks to palimpsest_background;

-- The parts of the last assembled payload of each conversation. Rows are overwritten, and may be lost.
create table assemblies (
    conversation_id uuid constraint pk_assemblies primary key
        constraint fk_assemblies_conversation_id_conversations references conversations (id),
    tenant_id uuid not null,
    call text not null constraint ck_assemblies_call check (call in ('payload', 'context')),
    snapshot_version integer not null,
    system_tokens integer not null,
    prior_context_tokens integer not null,
    turn_context_tokens integer not null,
    history_tokens integer not null,
    user_message_tokens integer not null,
    reserved_output_tokens integer not null,
    total_token_budget integer not null,
    exchanges_total integer not null,
    exchanges_kept integer not null,
    rounds_dropped boolean not null,
    responses_truncated integer not null,
    blocks_shortened integer not null,
    warnings integer not null,
    assembled_at timestamptz not null
);
alter table assemblies enable row level security, force row level security;
create policy tenant on assemblies
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background_erases on assemblies to palimpsest_background using (true) with check (true);
grant select, insert, update (call, snapshot_version, system_tokens, prior_context_tokens, turn_context_tokens,
    history_tokens, user_message_tokens, reserved_output_tokens, total_token_budget, exchanges_total, exchanges_kept,
    rounds_dropped, responses_truncated, blocks_shortened, warnings, assembled_at) on assemblies to palimpsest_service;
grant select (conversation_id), delete on assemblies to palimpsest_background;
