-- squawk-ignore-file require-concurrent-index-creation -- the tables are new and empty
-- No foreign keys on the two tables that every append writes: append_turn holds the conversation's row lock, and
-- checking what it has just read would cost a lock a message.
create table messages (
    tenant_id uuid not null,
    conversation_id uuid not null,
    seq integer not null,
    role text not null constraint ck_messages_role check (role in ('user', 'assistant')),
    content json not null,
    tokens integer not null,
    view_tokens integer not null,
    bytes integer not null,
    result_chars integer[],
    is_request boolean not null,
    has_thinking boolean not null,
    created_at timestamptz not null default now(),
    superseded_at timestamptz,
    -- Null for a message of the Messages API. `sent` has what the function as_sent puts the message together from; null if the
    -- message was no more than its role and its content.
    shape text,
    sent json,
    -- When the message was said, if its client told so. is_undated: other messages of its turn have a time, this one has none.
    said_at timestamptz,
    is_undated boolean,
    -- The request that stored the turn, at its first message alone; null in forks.
    request_id uuid,
    constraint pk_messages primary key (conversation_id, seq),
    constraint ck_messages_shape check (coalesce(shape in ('chat', 'responses'), sent is null))
);
alter table messages alter column sent set statistics 0;
-- For `palimpsest trace`. Request ids are in the order of time, as the rows are: ranges of pages tell where one can be, and a turn
-- pays for no entry.
create index ix_messages_request_id on messages using brin (request_id) with (autosummarize = on);
alter table messages enable row level security, force row level security;
create policy tenant on messages
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy auditor on messages for select to palimpsest_auditor using (true);
create policy background_erases on messages to palimpsest_background using (true) with check (true);
grant select, insert, update (superseded_at) on messages to palimpsest_service;
grant select (conversation_id, seq, created_at, superseded_at), delete on messages to palimpsest_background;
grant select (tenant_id, conversation_id, seq, role, tokens, created_at, superseded_at) on messages to palimpsest_auditor;

-- Images and files of each message in force that has any, for the check. Messages and conversations without media cost
-- nothing.
create table message_media (
    tenant_id uuid not null,
    conversation_id uuid not null,
    seq integer not null,
    images integer not null,
    image_side integer not null,
    documents integer not null,
    document_pages integer not null,
    bytes bigint not null,
    constraint pk_message_media primary key (conversation_id, seq),
    constraint fk_message_media_conversation_id_conversations foreign key (conversation_id) references conversations (id)
);
alter table message_media enable row level security, force row level security;
create policy tenant on message_media
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background on message_media to palimpsest_background using (true) with check (true);
grant select, insert on message_media to palimpsest_service;
grant select, delete on message_media to palimpsest_background;

-- Answers to appends with an idempotency key, until housekeeping removes them.
create table idempotency_keys (
    tenant_id uuid not null,
    conversation_id uuid not null,
    key text not null,
    body_hash bytea not null,
    first_seq integer not null,
    last_seq integer not null,
    context_tokens integer not null,
    queued boolean not null,
    created_at timestamptz not null default now(),
    constraint pk_idempotency_keys primary key (conversation_id, key)
);
create index ix_idempotency_keys_created_at on idempotency_keys (created_at);
alter table idempotency_keys alter column key set statistics 0, alter column body_hash set statistics 0;
alter table idempotency_keys enable row level security, force row level security;
create policy tenant on idempotency_keys
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background on idempotency_keys to palimpsest_background using (true) with check (true);
grant select, insert on idempotency_keys to palimpsest_service;
grant select (ctid, conversation_id, created_at), update (created_at), delete on idempotency_keys to palimpsest_background;
