-- Snapshots that are ready and wait until it pays that they become the head; compaction/cost says when. One a conversation: a
-- newer one takes its place. What it was made from is beside it: where that has changed it waits for nothing any more.
-- squawk-ignore-file require-concurrent-index-creation -- the table is new and empty
create table waiting_snapshots (
    conversation_id uuid constraint pk_waiting_snapshots primary key
        constraint fk_waiting_snapshots_conversation_id_conversations references conversations (id),
    tenant_id uuid not null,
    -- Null where nothing waits any more.
    version integer,
    head_version integer not null,
    edits integer not null,
    pins uuid[] not null,
    -- Seconds that the prompt cache lives, and when it is gone if nothing is said until then.
    lifetime integer not null,
    cold_at timestamptz not null
);
create index ix_waiting_snapshots_cold_at on waiting_snapshots (cold_at);

alter table waiting_snapshots enable row level security;
alter table waiting_snapshots force row level security;
create policy tenant on waiting_snapshots
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert, update (version, head_version, edits, pins, lifetime, cold_at) on waiting_snapshots
    to palimpsest_service;

create trigger waiting_snapshots_not_erased after insert on waiting_snapshots
    for each row execute function guard_erased();
create function forget_waiting_snapshots() returns trigger language plpgsql
set search_path = pg_catalog, public, pg_temp as $$
begin
    delete from public.waiting_snapshots as w where w.conversation_id = new.id;
    return new;
end $$;
create trigger conversations_forget_waiting_snapshots after update of erased_at on conversations
    for each row when (new.erased_at is not null) execute function forget_waiting_snapshots();
create policy background_erases on waiting_snapshots to palimpsest_background using (true) with check (true);
grant select (conversation_id, tenant_id, cold_at), delete on waiting_snapshots to palimpsest_background;

-- For the sweeper: those whose cache may be gone, the longest ago first.
create function cold_snapshots(p_limit integer) returns table (conversation_id uuid, tenant_id uuid)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select w.conversation_id, w.tenant_id from public.waiting_snapshots as w
    where w.cold_at < now() order by w.cold_at limit p_limit
$$;
grant create on schema public to palimpsest_background;
alter function cold_snapshots(integer) owner to palimpsest_background;
revoke create on schema public from palimpsest_background;
revoke execute on function cold_snapshots(integer) from public;
grant execute on function cold_snapshots(integer) to palimpsest_service;
