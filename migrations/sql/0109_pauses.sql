-- Conversations that are compacted in their next pause, when the prompt cache is gone. They stand beside the snapshots that wait,
-- with no version: the sweeper asks for a check of each when its cache is cold, and the check sees what is due by then.
-- squawk-ignore-file ban-drop-constraint -- a wider one takes its place in the same transaction
alter table runs drop constraint ck_runs_trigger;
alter table runs add constraint ck_runs_trigger
    check (trigger in ('check', 'pause', 'manual', 'overflow', 'budget', 'context_block', 'batch', 'pin', 'restore', 'fork',
        'import'))
    not valid;

grant select (edits, held_by_restore) on conversations to palimpsest_background;
grant select (seq, created_at) on messages to palimpsest_background;
grant select (trigger, created_at) on runs to palimpsest_background;
grant select (version, lifetime), insert, update (lifetime, cold_at) on waiting_snapshots to palimpsest_background;

-- Of conversations whose cache lives so many seconds: those whose cache is gone. The others are waited for, where they are not yet.
-- One that a restore holds, one with a snapshot that waits already, and one that was looked at in this pause is left alone.
create function watch_pauses(p_ids uuid[], p_lifetimes integer[]) returns setof uuid
language sql volatile security definer set search_path = pg_catalog, public, pg_temp as $$
    with quiet as (
        select c.id, c.tenant_id, c.head_version, c.edits, asked.lifetime, newest.created_at
            + make_interval(secs => asked.lifetime) as cold_at
        from unnest(p_ids, p_lifetimes) as asked (id, lifetime)
        join public.conversations as c on c.id = asked.id
        left join public.waiting_snapshots as w on w.conversation_id = c.id
        cross join lateral (
            select m.created_at from public.messages as m where m.conversation_id = c.id order by m.seq desc limit 1
        ) as newest
        left join lateral (
            select r.trigger, r.created_at from public.runs as r where r.conversation_id = c.id and r.block_id is null
            order by r.id desc limit 1
        ) as latest on true
        where c.erased_at is null and not c.held_by_restore and c.pending_version is null and w.version is null
            and (latest.trigger is distinct from 'pause' or latest.created_at < newest.created_at)
            and (w.cold_at is null or w.cold_at = 'infinity' or w.cold_at < now())
        order by c.id
    ), watched as (
        insert into public.waiting_snapshots (conversation_id, tenant_id, head_version, edits, pins, lifetime, cold_at)
        select q.id, q.tenant_id, q.head_version, q.edits, '{}', q.lifetime, q.cold_at from quiet as q where q.cold_at >= now()
        on conflict (conversation_id) do update set lifetime = excluded.lifetime, cold_at = excluded.cold_at
            where waiting_snapshots.version is null
    )
    select q.id from quiet as q where q.cold_at < now()
$$;
grant create on schema public to palimpsest_background;
alter function watch_pauses(uuid[], integer[]) owner to palimpsest_background;
revoke create on schema public from palimpsest_background;
revoke execute on function watch_pauses(uuid[], integer[]) from public;
grant execute on function watch_pauses(uuid[], integer[]) to palimpsest_service;
