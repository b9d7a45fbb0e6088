-- squawk-ignore-file require-concurrent-index-creation -- the tables are new and empty
-- Token counts of providers for the calls that turns came from, a row a turn. They are written in batches off the request path.
-- Beats reckon them afterwards: the tokens shared with the call before, and the cost without compaction.
create table turn_usages (
    tenant_id uuid not null,
    conversation_id uuid
        constraint fk_turn_usages_conversation_id_conversations references conversations (id),
    -- The turn's first message.
    seq integer,
    -- The version that the call was made with; if it is unknown, the head when the row was written.
    snapshot_version integer not null,
    input_tokens integer not null,
    -- Of the input tokens, those read from a cache and written to one; null if the usage does not tell.
    cached_tokens integer,
    written_tokens integer,
    output_tokens integer not null,
    is_edit boolean not null,
    answered_at timestamptz not null,
    -- Null until it is reckoned.
    reckoned_at timestamptz,
    -- Tokens that this call and the one before it begin with; null if unknown.
    prefix_tokens integer,
    -- Those of them that a cache should still have had.
    expected_tokens integer,
    -- Tokens of messages that the context does not show, less those of what stands for them.
    saved_tokens integer,
    -- Cost of the input; null if the model's price is unknown. Savings with the cache as it was, and as if there were none.
    cost_usd numeric(14, 6),
    saved_usd numeric(14, 6),
    saved_uncached_usd numeric(14, 6),
    constraint pk_turn_usages primary key (conversation_id, seq)
);
create index ix_turn_usages_reckoned_at on turn_usages (answered_at) where reckoned_at is null;
create index ix_turn_usages_tenant_id_answered_at on turn_usages (tenant_id, answered_at);
alter table turn_usages enable row level security, force row level security;
create policy tenant on turn_usages
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy auditor on turn_usages for select to palimpsest_auditor using (true);
create policy background_erases on turn_usages to palimpsest_background using (true) with check (true);
grant select, insert, update (reckoned_at, prefix_tokens, expected_tokens, saved_tokens, cost_usd, saved_usd,
    saved_uncached_usd) on turn_usages to palimpsest_service;
grant select (tenant_id, conversation_id, seq, answered_at, reckoned_at), update (answered_at), delete on turn_usages to
    palimpsest_background;
grant select on turn_usages to palimpsest_auditor;
