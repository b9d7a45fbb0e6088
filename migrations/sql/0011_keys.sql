-- What was revoked stays so, and an expiry only comes nearer, whoever asks: services may write both columns, and to take
-- either back would open a key that somebody had closed, without a trace. Who needs a key again makes another.
create function guard_keys() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if old.revoked_at is not null and new.revoked_at is distinct from old.revoked_at then
        raise exception 'a revoked key stays revoked' using errcode = 'restrict_violation';
    end if;
    if old.expires_at is not null and (new.expires_at is null or new.expires_at > old.expires_at) then
        raise exception 'the life of a key is never made longer' using errcode = 'restrict_violation';
    end if;
    return new;
end $$;
create trigger api_keys_stay_closed before update of revoked_at, expires_at on api_keys
    for each row execute function guard_keys();

-- The same for whoever signed out, and for a ticket that was taken.
create function guard_sessions() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if old.ended_at is not null and new.ended_at is distinct from old.ended_at then
        raise exception 'a session that has ended stays so' using errcode = 'restrict_violation';
    end if;
    return new;
end $$;
create trigger console_sessions_stay_ended before update of ended_at on console_sessions
    for each row execute function guard_sessions();
