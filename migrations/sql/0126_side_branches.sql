-- Snapshots that are not on the way to the head or to the pending one, from the end of each side branch backwards, so that
-- whatever is left has its parent. Looks at p_limit conversations after p_after, and removes as many snapshots at most; what is
-- over, conversations with a run under way, and those that somebody has locked, have their turn another time.
create or replace function expire_snapshots(
    p_after uuid, p_seconds double precision, p_limit integer, out last_seen uuid, out removed integer
) language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_before constant pg_catalog.timestamptz := now() - make_interval(secs => p_seconds);
    v_seen constant pg_catalog.uuid[] := array(
        select c.id from public.conversations as c where c.id > p_after order by c.id limit p_limit);
    v record;
    v_count integer;
begin
    last_seen := v_seen[p_limit];
    removed := 0;
    perform set_config('palimpsest.retention', 'snapshots', true);
    for v in
        -- Whatever else is on one of these ways has a child on it. Looked for in one pass over all of them: one by one, each
        -- would be looked for among as many of its conversation.
        select c.id as conversation_id, ending.version from public.conversations as c
            join (select s.conversation_id, s.version from public.snapshot_parts as s
                  where s.conversation_id = any (v_seen) and s.created_at < v_before
                  except
                  select s.conversation_id, s.parent_version from public.snapshot_parts as s
                  where s.conversation_id = any (v_seen)) as ending
                on ending.conversation_id = c.id and ending.version not in (c.head_version, coalesce(c.pending_version, 0))
        where not exists (select from public.runs as r
                          where r.conversation_id = c.id and r.state in ('queued', 'running'))
        -- As long as the row is locked no head can move to a snapshot that goes.
        limit p_limit for no key update of c skip locked
    loop
        delete from public.snapshot_parts as s
            where s.conversation_id = v.conversation_id and s.version = v.version
                and not exists (select from public.snapshot_parts as child
                                where child.conversation_id = s.conversation_id and child.parent_version = s.version);
        get diagnostics v_count = row_count;
        removed := removed + v_count;
    end loop;
    perform set_config('palimpsest.retention', '', true);
end $$;
