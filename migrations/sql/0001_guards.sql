-- Messages are append-only: nobody changes one, whatever their privileges, except to mark it superseded.
create function guard_messages() returns trigger language plpgsql as $$
begin
    if tg_op = 'UPDATE' and old.superseded_at is null
        and row(new.tenant_id, new.conversation_id, new.seq, new.role, new.content::text, new.tokens,
                new.view_tokens, new.bytes, new.result_chars, new.is_request, new.has_thinking, new.created_at)
            is not distinct from
            row(old.tenant_id, old.conversation_id, old.seq, old.role, old.content::text, old.tokens,
                old.view_tokens, old.bytes, old.result_chars, old.is_request, old.has_thinking, old.created_at) then
        return new;
    end if;
    raise exception 'messages are append-only' using errcode = 'restrict_violation';
end $$;
create trigger messages_append_only before update or delete on messages
    for each row execute function guard_messages();

create function guard_snapshots() returns trigger language plpgsql as $$
begin
    raise exception '% is append-only', tg_table_name using errcode = 'restrict_violation';
end $$;
create trigger snapshots_immutable before update or delete on snapshots
    for each row execute function guard_snapshots();
create trigger messages_no_truncate before truncate on messages
    for each statement execute function guard_snapshots();
create trigger snapshots_no_truncate before truncate on snapshots
    for each statement execute function guard_snapshots();
