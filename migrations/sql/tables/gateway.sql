-- squawk-ignore-file require-concurrent-index-creation -- the tables are new and empty
-- Conversations of gateway clients, which resend their whole history. A key in gateway_prefixes stands for a history up to one
-- message, within one circle: conversations of a tenant that may be taken for each other, of one shape, and of one session or
-- user if the client names it.
create table gateway_conversations (
    conversation_id uuid constraint pk_gateway_conversations primary key
        constraint fk_gateway_conversations_conversation_id_conversations references conversations (id),
    tenant_id uuid not null,
    circle bytea not null,
    -- The conversation that this one is a branch of; null for none.
    branch_of uuid,
    created_at timestamptz not null default now()
);
create index ix_gateway_conversations_circle on gateway_conversations (tenant_id, circle, conversation_id);
alter table gateway_conversations enable row level security, force row level security;
create policy tenant on gateway_conversations
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background_erases on gateway_conversations to palimpsest_background using (true) with check (true);
grant select, insert on gateway_conversations to palimpsest_service;
grant select (conversation_id), delete on gateway_conversations to palimpsest_background;

-- The keys of messages. outcome and the columns after it are set at the last message of each request that was answered.
create table gateway_prefixes (
    tenant_id uuid not null,
    conversation_id uuid not null
        constraint fk_gateway_prefixes_conversation_id_conversations references conversations (id),
    seq integer not null,
    key bytea not null,
    outcome text constraint ck_gateway_prefixes_outcome check (outcome in ('compacted', 'unchanged', 'failed_open')),
    saved_tokens integer,
    head_version integer,
    retried boolean,
    aborted boolean,
    answered_at timestamptz,
    constraint pk_gateway_prefixes primary key (conversation_id, seq)
);
create index ix_gateway_prefixes_key on gateway_prefixes (tenant_id, key, conversation_id);
alter table gateway_prefixes enable row level security, force row level security;
create policy tenant on gateway_prefixes
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background_erases on gateway_prefixes to palimpsest_background using (true) with check (true);
grant select, insert, update (key, outcome, saved_tokens, head_version, retried, aborted, answered_at) on gateway_prefixes
    to palimpsest_service;
grant select (conversation_id), delete on gateway_prefixes to palimpsest_background;

-- Answers within which the gateway answered calls of recall: messages seq to through_seq. The client has the rows in `shown`
-- in their place, and sends `resent` of them again (null: not yet). `results` are blocks that the next message begins with and
-- the client does not have: those of calls beside its own.
create table gateway_recalls (
    tenant_id uuid not null,
    conversation_id uuid not null
        constraint fk_gateway_recalls_conversation_id_conversations references conversations (id),
    seq integer not null,
    through_seq integer not null,
    resent integer,
    shown json not null,
    results json not null,
    -- Ids of the provider's first and last answer, where its answers have ids. The client knows the first one and goes on from
    -- it (previous_response_id); the provider has the whole under the last one.
    response_id text,
    last_response_id text,
    constraint pk_gateway_recalls primary key (conversation_id, seq)
);
create index ix_gateway_recalls_response on gateway_recalls (tenant_id, response_id)
    where response_id is not null;
alter table gateway_recalls alter column response_id set statistics 0, alter column last_response_id set statistics 0;
alter table gateway_recalls enable row level security, force row level security;
create policy tenant on gateway_recalls
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background_erases on gateway_recalls to palimpsest_background using (true) with check (true);
grant select, insert, update (resent) on gateway_recalls to palimpsest_service;
grant select (conversation_id), delete on gateway_recalls to palimpsest_background;
