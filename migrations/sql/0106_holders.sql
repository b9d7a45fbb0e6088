-- Who holds a lease: the process of `processes` that speaks for whoever claimed the run, so that the runs of one that has ended
-- are given back before their leases run out. place is the host, its boot and the namespace of process ids, where the system
-- tells them, and pid_started when the process began, in ticks since that boot: with both, another at the same place sees that
-- it is gone. beat_seconds is how often it is heard of. Releases before leave all of it null, and their leases run out.
alter table processes add column place text, add column pid_started bigint, add column beat_seconds double precision;
alter table runs add column process_id uuid;

-- Whoever claims a run or lets it go without a word about the process, as the release before does, leaves no holder behind:
-- its lease would be judged by a process that no longer has it.
create function forget_holder() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    new.process_id := null;
    return new;
end $$;
create trigger runs_forget_holder before update of lease_token on runs for each row
    when (old.process_id is not null and new.process_id is not distinct from old.process_id
          and new.lease_token is distinct from old.lease_token)
    execute function forget_holder();

-- Have the leases of a process expire that is known to have ended; of p_workers alone, where it is some of its pool's that
-- ended. What is locked is being committed, and seen to at the next look.
create function expire_leases(p_process uuid, p_workers text[]) returns integer
language sql security definer set search_path = pg_catalog, public, pg_temp as $$
    with lost as (
        select r.id from public.runs as r
        where r.state = 'running' and r.process_id = p_process and r.lease_expires_at >= now()
            and (p_workers is null or r.worker = any (p_workers))
        for update of r skip locked
    ), expired as (
        update public.runs as r set lease_expires_at = now() from lost where r.id = lost.id returning r.id
    )
    select count(*)::pg_catalog.int4 from expired
$$;

-- Have the leases expire of processes that have missed p_beats heartbeats. The caller has seen the database answer without a
-- break for p_watched seconds: in less than those beats take, nobody can be missed, as nobody could be heard. A claim and a
-- lease kept alive (for p_lease seconds) are signs of life as well. p_beat_seconds is for processes without a row.
create function expire_missed_leases(
    p_beats integer, p_beat_seconds double precision, p_watched double precision, p_lease double precision
) returns table (process_id uuid, leases integer)
language sql security definer set search_path = pg_catalog, public, pg_temp as $$
    with held as (
        select r.id, r.lease_expires_at, p.seen_at, p_beats * coalesce(p.beat_seconds, p_beat_seconds) as patience
        from public.runs as r left join public.processes as p on p.id = r.process_id
        where r.state = 'running' and r.process_id is not null and r.lease_expires_at >= now()
    ), lost as (
        select r.id from public.runs as r join held as h on h.id = r.id
        where h.patience <= p_watched
            and (h.seen_at is null or h.seen_at < now() - make_interval(secs => h.patience))
            and r.lease_expires_at < now() + make_interval(secs => p_lease - h.patience)
        for update of r skip locked
    ), expired as (
        update public.runs as r set lease_expires_at = now() from lost where r.id = lost.id returning r.process_id
    )
    select e.process_id, count(*)::pg_catalog.int4 from expired as e group by e.process_id
$$;

grant select (worker, process_id) on runs to palimpsest_background;
grant select (id, seen_at, beat_seconds) on processes to palimpsest_background;
grant create on schema public to palimpsest_background;
do $$
declare
    v_function text;
begin
    foreach v_function in array array['expire_leases', 'expire_missed_leases'] loop
        execute format('alter function %I owner to palimpsest_background', v_function);
        execute format('revoke execute on function %I from public', v_function);
        execute format('grant execute on function %I to palimpsest_service', v_function);
    end loop;
end $$;
revoke create on schema public from palimpsest_background;
