-- What was sent is in a table of its own again.
drop view sent_messages;
drop function write_sent_message;
drop function append_turn(uuid, uuid, uuid, integer, integer, text, bytea, turn_messages, turn_facts, turn_usage, turn_context,
                          context_limits, text, json[]);
create table sent_messages (
    tenant_id uuid not null,
    conversation_id uuid not null,
    seq integer not null,
    shape text not null constraint ck_sent_messages_shape check (shape in ('chat', 'responses')),
    sent json not null,
    constraint pk_sent_messages primary key (conversation_id, seq)
);
-- Statistics outlive what they quote.
alter table sent_messages alter column sent set statistics 0;
alter table sent_messages enable row level security;
alter table sent_messages force row level security;
create policy tenant on sent_messages
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert on sent_messages to palimpsest_service;
alter table messages no force row level security;
alter table sent_messages no force row level security;
insert into sent_messages (tenant_id, conversation_id, seq, shape, sent)
select m.tenant_id, m.conversation_id, m.seq, m.shape, public.as_sent(m.role, m.content, m.sent)::json
from messages as m where m.shape is not null;
alter table messages force row level security;
alter table sent_messages force row level security;
create function guard_sent_messages() returns trigger language plpgsql
set search_path = pg_catalog, public, pg_temp as $$
begin
    if tg_op = 'DELETE' and current_user = 'palimpsest_background'
        and current_setting('palimpsest.erasure', true) = old.conversation_id::text then
        return old;
    end if;
    raise exception 'sent messages are append-only' using errcode = 'restrict_violation';
end $$;
create trigger sent_messages_append_only before update or delete on sent_messages
    for each row execute function guard_sent_messages();
create trigger sent_messages_no_truncate before truncate on sent_messages
    for each statement execute function guard_snapshots();

create function forget_sent_messages() returns trigger language plpgsql
set search_path = pg_catalog, public, pg_temp as $$
begin
    perform set_config('palimpsest.erasure', new.id::text, true);
    delete from public.sent_messages as s where s.conversation_id = new.id;
    perform set_config('palimpsest.erasure', '', true);
    return new;
end $$;
create trigger conversations_forget_sent_messages after update of erased_at on conversations
    for each row when (new.erased_at is not null) execute function forget_sent_messages();
create policy background_erases on sent_messages to palimpsest_background using (true) with check (true);
grant select (conversation_id), delete on sent_messages to palimpsest_background;
revoke update (shape, sent) on messages from palimpsest_service;
alter table messages drop column shape, drop column sent;
drop function as_sent;
