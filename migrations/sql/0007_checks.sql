-- As the function of revision 0001; the commit does not wait for the disk. A crash may bring marks back, which costs a check
-- each and nothing else: what was appended later is later in the log as well.
create or replace function clear_checks(p_conversations uuid[], p_revisions bigint[]) returns setof uuid
language sql security definer set search_path = pg_catalog, public as $$
    select set_config('synchronous_commit', 'off', true);
    update public.conversations as c set check_due_at = null
    from unnest(p_conversations, p_revisions) as seen (id, revision)
    where c.id = seen.id and c.revision = seen.revision and (c.check_due_at is null) is false
    returning c.id
$$;
