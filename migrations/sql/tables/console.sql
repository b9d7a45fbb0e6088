-- squawk-ignore-file require-concurrent-index-creation -- the tables are new and empty
-- Sessions of the console. A session stands for the key that began it and ends with it; a ticket is a sign-in that may be
-- taken once. Of the browser's token only the hash is stored.
create table console_sessions (
    token_hash bytea constraint pk_console_sessions primary key,
    tenant_id uuid not null,
    key_id uuid not null constraint fk_console_sessions_key_id_api_keys references api_keys (id),
    is_ticket boolean not null default false,
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    ended_at timestamptz
);
create index ix_console_sessions_expires_at on console_sessions (expires_at);
alter table console_sessions alter column token_hash set statistics 0;
alter table console_sessions enable row level security, force row level security;
create policy tenant on console_sessions
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background on console_sessions to palimpsest_background using (true) with check (true);
grant select, insert, update (ended_at) on console_sessions to palimpsest_service;
grant select, update (ended_at), delete on console_sessions to palimpsest_background;

-- What operators did, kept for good: ids and numbers, no words. Rows outlive the erasure of the conversation. subject_key_id
-- is the key that was made or revoked, subject_id the webhook.
create table operator_actions (
    id uuid constraint pk_operator_actions primary key,
    tenant_id uuid not null,
    key_id uuid not null,
    action text not null constraint ck_operator_actions_action check (action in (
        'sign_in', 'sign_out', 'compact', 'restore', 'retry', 'demo', 'key_create', 'key_rotate', 'key_revoke',
        'erase', 'export', 'webhook_create', 'webhook_remove', 'delivery_retry'
    )),
    outcome text not null,
    conversation_id uuid,
    run_id uuid,
    version integer,
    request_id uuid not null,
    created_at timestamptz not null default now(),
    subject_key_id uuid,
    subject_id uuid
);
create index ix_operator_actions_tenant_id_id on operator_actions (tenant_id, id);
alter table operator_actions enable row level security, force row level security;
create policy tenant on operator_actions
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert on operator_actions to palimpsest_service;
