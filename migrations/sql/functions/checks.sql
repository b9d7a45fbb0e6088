-- Return the state of conversations that a check is due for, as the check needs it, locked if p_lock. `media` has the media of
-- the context in the order of message_media's columns; null if no media came since a run looked at them.
create or replace function due_states(p_conversations uuid[], p_lock boolean) returns table (
    conversation_id uuid, tenant_id uuid, tenant_policy jsonb, policy jsonb, model text, revision bigint,
    estimated integer, measured integer, context_bytes bigint, has_old_results boolean,
    tool_results_hold integer, summary_hold integer, trim_hold integer,
    pending_version integer, has_active_run boolean, counted_cap integer,
    stored integer, is_counted boolean, media bigint[], requested_output integer
) language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
begin
    if p_lock then
        perform set_config('lock_timeout', case when cardinality(p_conversations) > 1 then '200ms' else '2s' end, true);
        perform from public.conversations as c where c.id = any (p_conversations) order by c.id for no key update;
    end if;
    return query
    select c.id, c.tenant_id, t.policy, c.policy, c.model, c.revision,
           least(2147483647, ceil((c.context_tokens::bigint + c.fixed_tokens) * c.token_ratio)
                             + c.unstored_tokens)::integer,
           case when c.measured_version = c.head_version then c.measured_tokens end,
           c.context_bytes, c.newest_result > c.results_cut_through,
           c.tool_results_hold, c.summary_hold, c.trim_hold, c.pending_version,
           exists (select from public.runs as r
                   where r.conversation_id = c.id and r.state in ('queued', 'running') and r.block_id is null),
           c.counted_cap, least(2147483647, c.context_tokens::bigint + c.fixed_tokens)::integer, c.last_request < c.measured_seq,
           case when c.newest_media > c.media_checked_through then (
               select array[coalesce(sum(m.images), 0), coalesce(max(m.image_side), 0), coalesce(sum(m.documents), 0),
                            coalesce(sum(m.document_pages), 0), coalesce(sum(m.bytes), 0)]::bigint[]
               from (select f.images, f.image_side, f.documents, f.document_pages, f.bytes
                     from public.message_media as f
                     where f.conversation_id = c.id and f.seq > c.covers_through
                     union all
                     select s.media[1], s.media[2], s.media[3], s.media[4], s.media[5]
                     from public.snapshot_parts as s
                     where s.conversation_id = c.id and s.version = c.head_version) as m) end,
           c.requested_output
    from public.conversations as c join public.tenants as t on t.id = c.tenant_id
    where c.id = any (p_conversations) and (c.check_due_at is null) is false;
end $$;

-- Take the mark off conversations that need nothing, unless something was appended since their state was read. The commit does
-- not wait for the disk: a crash may bring marks back, each of which costs one more check.
create or replace function clear_checks(p_conversations uuid[], p_revisions bigint[]) returns setof uuid
language sql security definer set search_path = pg_catalog, public, pg_temp as $$
    select set_config('synchronous_commit', 'off', true),
           set_config('lock_timeout', case when cardinality(p_conversations) > 1 then '200ms' else '2s' end, true);
    update public.conversations as c set check_due_at = null
    from unnest(p_conversations, p_revisions) as seen (id, revision)
    where c.id = seen.id and c.revision = seen.revision and (c.check_due_at is null) is false
    returning c.id
$$;

-- Return due checks whose wake-up was lost. nth is a check's place among its tenant's own; tenants take turns by it, so that
-- one with many does not delay the others.
create or replace function overdue_checks_by_turns(p_seconds double precision, p_limit integer) returns table (
    conversation_id uuid, tenant_id uuid, due_at timestamptz, nth bigint
) language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select c.id, c.tenant_id, c.check_due_at,
           row_number() over (partition by c.tenant_id order by c.check_due_at, c.id) as nth
    from public.conversations as c
    where c.check_due_at < now() - make_interval(secs => p_seconds)
    order by nth, c.check_due_at limit p_limit
$$;

-- Return conversations whose system prompt and tools alone are over a threshold: the conversation's, the tenant's, or the
-- given one of the installation. It reads every conversation's row; `palimpsest doctor` calls it.
create or replace function over_by_fixed(p_threshold integer, p_budget integer, out over_threshold bigint, out over_budget bigint)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select count(*) filter (where beside.tokens > coalesce((c.policy ->> 'compaction_threshold_tokens')::integer,
                                                           (t.policy ->> 'compaction_threshold_tokens')::integer, p_threshold)),
           count(*) filter (where limits.budget > 0 and beside.tokens > limits.budget)
    from public.conversations as c join public.tenants as t on t.id = c.tenant_id,
         lateral (select (c.fixed_tokens - c.carried_tokens) * c.token_ratio + c.unstored_tokens as tokens) as beside,
         lateral (select coalesce((c.policy ->> 'input_token_budget')::integer,
                                  (t.policy ->> 'input_token_budget')::integer, p_budget) as budget) as limits
$$;

-- Return the conversations whose prompt cache is gone, of those given with their caches' lifetimes in seconds; the others are
-- entered in waiting_snapshots. Conversations that are held by a restore, that have a waiting snapshot, or that were checked
-- in this pause, are skipped.
create or replace function watch_pauses(p_ids uuid[], p_lifetimes integer[]) returns setof uuid
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

-- Return waiting snapshots whose cache may be cold, the longest ago first.
create or replace function cold_snapshots(p_limit integer) returns table (conversation_id uuid, tenant_id uuid)
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select w.conversation_id, w.tenant_id from public.waiting_snapshots as w
    where w.cold_at < now() order by w.cold_at limit p_limit
$$;
