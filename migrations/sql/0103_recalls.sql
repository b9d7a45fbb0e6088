-- What was asked back, and where it was: a row a recall and conversation. What was asked is a tenant's text: it goes with its
-- conversation, and so does every row of a recall across a user's conversations once one of them goes.
-- squawk-ignore-file require-concurrent-index-creation -- the table is new and empty
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
    -- The messages of these passages, and for each that the context did not show: the step and the run that had taken it out.
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
-- Statistics outlive what they quote.
alter table recall_requests
    alter column asked set statistics 0, alter column refs set statistics 0, alter column left_by set statistics 0;
alter table recall_requests enable row level security;
alter table recall_requests force row level security;
create policy tenant on recall_requests
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert on recall_requests to palimpsest_service;

create trigger recall_requests_not_erased after insert on recall_requests
    for each row execute function guard_erased();

create function forget_recall_requests() returns trigger language plpgsql
set search_path = pg_catalog, public, pg_temp as $$
begin
    delete from public.recall_requests as r
        where r.of_user and r.request_id in (
            select o.request_id from public.recall_requests as o where o.conversation_id = new.id and o.of_user);
    delete from public.recall_requests as r where r.conversation_id = new.id;
    return new;
end $$;
create trigger conversations_forget_recall_requests after update of erased_at on conversations
    for each row when (new.erased_at is not null) execute function forget_recall_requests();

-- By the time at which they came.
create function expire_recall_requests(p_seconds double precision, p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_removed integer;
begin
    delete from public.recall_requests as r
        where r.id = any (array(
            select o.id from public.recall_requests as o
            where o.id < public.first_id_at(now() - make_interval(secs => p_seconds))
            order by o.id limit p_limit for update skip locked));
    get diagnostics v_removed = row_count;
    return v_removed;
end $$;
create policy background_erases on recall_requests to palimpsest_background using (true) with check (true);
grant select (id, conversation_id, request_id, of_user), update (created_at), delete on recall_requests
    to palimpsest_background;
grant create on schema public to palimpsest_background;
alter function expire_recall_requests owner to palimpsest_background;
revoke execute on function expire_recall_requests from public;
grant execute on function expire_recall_requests to palimpsest_service;
revoke create on schema public from palimpsest_background;

-- For auditors: who asked when for which messages, without what was asked.
create view recalls with (security_invoker = true) as
select t.name as tenant,
       r.conversation_id,
       r.id as recall_id,
       r.request_id,
       r.key_id,
       r.origin,
       r.of_user,
       r.kind,
       r.refs,
       r.seqs,
       r.left_by,
       r.left_in,
       cardinality(r.seqs) as messages,
       (select count(*) from unnest(r.left_by) as step (name) where step.name is not null) as messages_out_of_context,
       r.searched,
       r.tokens,
       r.created_at as asked_at
from recall_requests as r join tenants as t on t.id = r.tenant_id;
grant select on recalls to palimpsest_auditor;
create policy auditor on recall_requests for select to palimpsest_auditor using (true);
grant select (id, tenant_id, conversation_id, request_id, key_id, origin, of_user, kind, refs, seqs, left_by, left_in,
              searched, tokens, created_at) on recall_requests to palimpsest_auditor;
