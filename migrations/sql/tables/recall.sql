-- squawk-ignore-file require-concurrent-index-creation -- the tables are new and empty
-- The search index of recall: terms of stretches of a conversation. It can be made from the messages again, and stretches
-- without a row are searched all the same. It has words of the messages and is erased with them.
create table recall_segments (
    tenant_id uuid not null,
    conversation_id uuid not null
        constraint fk_recall_segments_conversation_id_conversations references conversations (id),
    first_seq integer not null,
    last_seq integer not null,
    terms bytea not null,
    constraint pk_recall_segments primary key (conversation_id, first_seq),
    constraint ck_recall_segments_span check (last_seq >= first_seq)
);
alter table recall_segments alter column terms set statistics 0;
alter table recall_segments enable row level security, force row level security;
create policy tenant on recall_segments
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background_erases on recall_segments to palimpsest_background using (true) with check (true);
grant select, insert on recall_segments to palimpsest_service;
grant select (conversation_id), delete on recall_segments to palimpsest_background;

-- Recall requests and where their passages were: a row for each recall and conversation. The text asked for is erased with its
-- conversation; if a recall went across several conversations of a user, all of its rows go when one of these is erased.
create table recall_requests (
    id uuid constraint pk_recall_requests primary key,
    tenant_id uuid not null,
    conversation_id uuid not null
        constraint fk_recall_requests_conversation_id_conversations references conversations (id),
    key_id uuid not null,
    request_id uuid not null,
    origin text not null constraint ck_recall_requests_origin check (origin in ('api', 'console')),
    of_user boolean not null,
    kind text not null constraint ck_recall_requests_kind check (kind in ('query', 'ref', 'pattern')),
    asked text not null,
    refs text[] not null,
    -- The messages of the passages; for each that the context did not show, the step and the run that took it out.
    seqs integer[] not null,
    left_by text[] not null,
    left_in uuid[] not null,
    searched integer not null,
    tokens integer not null,
    created_at timestamptz not null default now(),
    constraint ck_recall_requests_parallel
        check (cardinality(seqs) = cardinality(left_by) and cardinality(seqs) = cardinality(left_in))
);
create index ix_recall_requests_conversation_id_id on recall_requests (conversation_id, id);
create index ix_recall_requests_tenant_id_id on recall_requests (tenant_id, id);
create index ix_recall_requests_of_user on recall_requests (request_id) where of_user;
alter table recall_requests alter column asked set statistics 0, alter column refs set statistics 0,
    alter column left_by set statistics 0;
alter table recall_requests enable row level security, force row level security;
create policy tenant on recall_requests
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy auditor on recall_requests for select to palimpsest_auditor using (true);
create policy background_erases on recall_requests to palimpsest_background using (true) with check (true);
grant select, insert on recall_requests to palimpsest_service;
grant select (id, conversation_id, request_id, of_user), update (created_at), delete on recall_requests to
    palimpsest_background;
grant select (id, tenant_id, conversation_id, key_id, request_id, origin, of_user, kind, refs, seqs, left_by, left_in,
    searched, tokens, created_at) on recall_requests to palimpsest_auditor;
