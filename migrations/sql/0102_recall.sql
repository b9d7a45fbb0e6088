-- The terms of stretches of a conversation, as its search reads them. Made from the messages at any time again: what is not
-- there is searched all the same. They are words of the messages, so they are erased with these.
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
-- Statistics outlive what they quote.
alter table recall_segments alter column terms set statistics 0;
alter table recall_segments enable row level security;
alter table recall_segments force row level security;
create policy tenant on recall_segments
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert on recall_segments to palimpsest_service;

create trigger recall_segments_not_erased after insert on recall_segments
    for each row execute function guard_erased();

create function forget_recall_segments() returns trigger language plpgsql
set search_path = pg_catalog, public, pg_temp as $$
begin
    delete from public.recall_segments as s where s.conversation_id = new.id;
    return new;
end $$;
create trigger conversations_forget_recall_segments after update of erased_at on conversations
    for each row when (new.erased_at is not null) execute function forget_recall_segments();
create policy background_erases on recall_segments to palimpsest_background using (true) with check (true);
grant select (conversation_id), delete on recall_segments to palimpsest_background;
