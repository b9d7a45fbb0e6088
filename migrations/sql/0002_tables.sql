alter table conversations
    add column carried_tokens integer not null default 0,
    add column turn_context_tokens integer not null default 0,
    add column held_by_restore boolean not null default false,
    -- The cap on tool results that context_tokens were counted with.
    add column counted_cap integer;

-- The pins that stand in a snapshot's first message because their own messages are not shown any more.
alter table snapshots add column pins jsonb not null default '[]';

-- Context that came with a turn and is not history; seq is the turn's last request, or its last message. carried_until is the seq of the turn that ended its being carried over
-- (a newer block of the same source, or too many of them); an edit that supersedes that turn brings it back.
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

-- What the last assembly of a conversation was made of; overwritten, and lost without harm.
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

-- What has to stay in the context word for word: a message's text, or a span of it.
create table pins (
    id uuid constraint pk_pins primary key,
    tenant_id uuid not null,
    conversation_id uuid not null constraint fk_pins_conversation_id_conversations references conversations (id),
    seq integer not null,
    text text not null,
    request_id uuid,
    created_at timestamptz not null default now(),
    removed_at timestamptz
);
create index ix_pins_conversation_id on pins (conversation_id);

-- A run by hand may ask for a strategy and carry instructions; one after an overflow starts from the version before it and
-- has to stay within what the model took; one for a context block leaves the conversation's own runs alone.
alter table runs
    add column strategy text,
    add column instructions text,
    add column base_version integer,
    add column target_tokens integer,
    add column block_id uuid constraint fk_runs_block_id_context_blocks references context_blocks (id);
drop index uq_runs_active;
create unique index uq_runs_active on runs (conversation_id)
    where state in ('queued', 'running') and block_id is null;
create unique index uq_runs_active_block on runs (block_id) where state in ('queued', 'running');

do $$
begin
    alter table context_blocks alter column text set compression lz4;
exception when feature_not_supported or invalid_parameter_value then
    raise notice 'this server has no lz4; context blocks are compressed with pglz';
end $$;

do $$
declare
    v_table text;
begin
    foreach v_table in array array['context_blocks', 'assemblies', 'pins'] loop
        execute format('alter table %I enable row level security', v_table);
        execute format('alter table %I force row level security', v_table);
        execute format($policy$
            create policy tenant on %I
                using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
                with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
        $policy$, v_table);
    end loop;
end $$;
grant select, insert on context_blocks, assemblies, pins to palimpsest_service;
grant update (call, snapshot_version, system_tokens, prior_context_tokens, turn_context_tokens, history_tokens,
              user_message_tokens, reserved_output_tokens, total_token_budget, exchanges_total, exchanges_kept,
              rounds_dropped, responses_truncated, blocks_shortened, warnings, assembled_at)
    on assemblies to palimpsest_service;
grant update (summary, summarized_at, carried_until, superseded_at) on context_blocks to palimpsest_service;
grant update (removed_at) on pins to palimpsest_service;
