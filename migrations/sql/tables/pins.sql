-- squawk-ignore-file require-concurrent-index-creation -- the tables are new and empty
-- The ledger of rules: texts that stay in the context word for word. People pin a message or a span of it, rules are detected
-- in messages, and a withdrawal is what a user said to end a rule.
create table pins (
    id uuid constraint pk_pins primary key,
    tenant_id uuid not null,
    conversation_id uuid not null constraint fk_pins_conversation_id_conversations references conversations (id),
    seq integer not null,
    text text not null,
    request_id uuid,
    created_at timestamptz not null default now(),
    removed_at timestamptz,
    source text not null default 'pinned' constraint ck_pins_source check (source in ('pinned', 'detected', 'withdrawal')),
    speaker text not null default ''
);
create index ix_pins_conversation_id on pins (conversation_id);
alter table pins alter column text set statistics 0, alter column source set statistics 0, alter column speaker set statistics 0;
alter table pins enable row level security, force row level security;
create policy tenant on pins
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background_erases on pins to palimpsest_background using (true) with check (true);
grant select, insert, update (removed_at) on pins to palimpsest_service;
grant select (conversation_id), delete on pins to palimpsest_background;
