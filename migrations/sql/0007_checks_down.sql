create or replace function clear_checks(p_conversations uuid[], p_revisions bigint[]) returns setof uuid
language sql security definer set search_path = pg_catalog, public as $$
    update public.conversations as c set check_due_at = null
    from unnest(p_conversations, p_revisions) as seen (id, revision)
    where c.id = seen.id and c.revision = seen.revision and (c.check_due_at is null) is false
    returning c.id
$$;
