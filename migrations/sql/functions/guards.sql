-- Return whether a conversation exists and is not erased; an erasure under way is waited for.
create or replace function is_there(p_conversation uuid) returns boolean language plpgsql as $$
begin
    perform from public.conversations as c where c.id = p_conversation and c.erased_at is null for key share;
    return found;
end $$;

-- Keep messages append-only: the only change is to mark one superseded, and only the erasure of its conversation removes one.
create or replace function guard_messages() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if tg_op = 'UPDATE' and old.superseded_at is null
        and row(new.tenant_id, new.conversation_id, new.seq, new.role, new.content::text, new.tokens,
                new.view_tokens, new.bytes, new.result_chars, new.is_request, new.has_thinking, new.created_at,
                new.shape, new.sent::text)
            is not distinct from
            row(old.tenant_id, old.conversation_id, old.seq, old.role, old.content::text, old.tokens,
                old.view_tokens, old.bytes, old.result_chars, old.is_request, old.has_thinking, old.created_at,
                old.shape, old.sent::text) then
        return new;
    end if;
    if tg_op = 'DELETE' and current_user = 'palimpsest_background'
        and current_setting('palimpsest.erasure', true) = old.conversation_id::text then
        return old;
    end if;
    raise exception 'messages are append-only' using errcode = 'restrict_violation';
end $$;
create or replace trigger messages_append_only before update or delete on messages
    for each row execute function guard_messages();

-- Keep snapshots immutable but for retention and erasure, which say so in their transaction, as palimpsest_background.
-- Erasures and operator actions have no exception.
create or replace function guard_snapshots() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if tg_op = 'DELETE' and tg_table_name = 'snapshot_parts' and current_user = 'palimpsest_background'
        and (current_setting('palimpsest.retention', true) = 'snapshots'
             or current_setting('palimpsest.erasure', true) = old.conversation_id::text) then
        return old;
    end if;
    raise exception '% is append-only', tg_table_name using errcode = 'restrict_violation';
end $$;
create or replace trigger messages_no_truncate before truncate on messages
    for each statement execute function guard_snapshots();
create or replace trigger snapshots_immutable before update or delete on snapshot_parts
    for each row execute function guard_snapshots();
create or replace trigger snapshots_immutable instead of update or delete on snapshots
    for each row execute function guard_snapshots();
create or replace trigger snapshots_no_truncate before truncate on snapshot_parts
    for each statement execute function guard_snapshots();
create or replace trigger erasures_immutable before update or delete on erasures
    for each row execute function guard_snapshots();
create or replace trigger erasures_no_truncate before truncate on erasures
    for each statement execute function guard_snapshots();
create or replace trigger operator_actions_immutable before update or delete on operator_actions
    for each row execute function guard_snapshots();
create or replace trigger operator_actions_no_truncate before truncate on operator_actions
    for each statement execute function guard_snapshots();

-- Keep a revoked key revoked, and let an expiry only come nearer. Services may write both columns, and undoing either would
-- open a closed key without a trace.
create or replace function guard_keys() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if old.revoked_at is not null and new.revoked_at is distinct from old.revoked_at then
        raise exception 'a revoked key stays revoked' using errcode = 'restrict_violation';
    end if;
    if old.expires_at is not null and (new.expires_at is null or new.expires_at > old.expires_at) then
        raise exception 'the life of a key is never made longer' using errcode = 'restrict_violation';
    end if;
    return new;
end $$;
create or replace trigger api_keys_stay_closed before update of revoked_at, expires_at on api_keys
    for each row execute function guard_keys();

-- Keep a session that has ended, and a ticket that was taken, ended.
create or replace function guard_sessions() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if old.ended_at is not null and new.ended_at is distinct from old.ended_at then
        raise exception 'a session that has ended stays so' using errcode = 'restrict_violation';
    end if;
    return new;
end $$;
create or replace trigger console_sessions_stay_ended before update of ended_at on console_sessions
    for each row execute function guard_sessions();

-- Refuse new rows of an erased conversation.
create or replace function guard_erased() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if public.is_there(new.conversation_id) then
        return new;
    end if;
    raise exception 'there is no such conversation' using errcode = 'PL404';
end $$;
create or replace trigger snapshots_not_erased after insert on snapshot_parts for each row execute function guard_erased();
create or replace trigger context_blocks_not_erased after insert on context_blocks for each row execute function guard_erased();
create or replace trigger pins_not_erased after insert on pins for each row execute function guard_erased();
create or replace trigger recall_segments_not_erased after insert on recall_segments
    for each row execute function guard_erased();
create or replace trigger recall_requests_not_erased after insert on recall_requests
    for each row execute function guard_erased();
create or replace trigger gateway_conversations_not_erased after insert on gateway_conversations
    for each row execute function guard_erased();
create or replace trigger gateway_prefixes_not_erased after insert on gateway_prefixes
    for each row execute function guard_erased();
create or replace trigger gateway_recalls_not_erased after insert on gateway_recalls
    for each row execute function guard_erased();
create or replace trigger waiting_snapshots_not_erased after insert on waiting_snapshots
    for each row execute function guard_erased();
create or replace trigger turn_usages_not_erased after insert on turn_usages for each row execute function guard_erased();
create or replace trigger message_media_not_erased after insert on message_media for each row execute function guard_erased();

-- Let a run of an erased conversation be recorded for what it did and cost, without words; refuse one that is still to be
-- done.
create or replace function guard_erased_runs() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if public.is_there(new.conversation_id) then
        return new;
    end if;
    if new.state in ('queued', 'running') then
        raise exception 'there is no such conversation' using errcode = 'PL404';
    end if;
    new.error := null;
    new.instructions := null;
    new.policy := '{}';
    return new;
end $$;
create or replace trigger runs_not_erased before insert on runs for each row execute function guard_erased_runs();

-- Remove the words from steps of an erased conversation. It takes no lock: the writer of a step holds its run's lock, which an
-- erasure takes after the conversation's.
create or replace function guard_erased_steps() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if not exists (select from public.runs as r join public.conversations as c on c.id = r.conversation_id
                   where r.id = new.run_id and c.erased_at is null) then
        new.detail := null;
        new.error := null;
    end if;
    return new;
end $$;
create or replace trigger run_steps_not_erased before insert on run_steps for each row execute function guard_erased_steps();
