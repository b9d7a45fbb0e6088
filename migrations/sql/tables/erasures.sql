-- squawk-ignore-file require-concurrent-index-creation -- the tables are new and empty
-- The record of an erasure: ids and counts. Each row's proof takes in the one before it (number - 1) of its tenant, so that a
-- change or a missing row is noticed.
create table erasures (
    id uuid constraint pk_erasures primary key,
    tenant_id uuid not null constraint fk_erasures_tenant_id_tenants references tenants (id),
    number integer not null,
    conversation_id uuid not null
        constraint fk_erasures_conversation_id_conversations references conversations (id),
    asked_for text not null constraint ck_erasures_asked_for check (asked_for in ('conversation', 'user', 'retention')),
    key_id uuid,
    request_id uuid,
    message_count integer not null,
    snapshot_count integer not null,
    context_block_count integer not null,
    pin_count integer not null,
    run_count integer not null,
    step_count integer not null,
    delivery_count integer not null,
    idempotency_key_count integer not null,
    proof bytea not null,
    erased_at timestamptz not null,
    constraint uq_erasures_conversation_id unique (conversation_id),
    constraint uq_erasures_tenant_id_number unique (tenant_id, number)
);
create index ix_erasures_tenant_id_id on erasures (tenant_id, id);
alter table erasures enable row level security, force row level security;
create policy tenant on erasures
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background on erasures to palimpsest_background using (true) with check (true);
grant select on erasures to palimpsest_service;
grant select, insert on erasures to palimpsest_background;
