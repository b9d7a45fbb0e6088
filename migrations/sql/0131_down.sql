create or replace function due_states(p_conversations uuid[], p_lock boolean) returns table (
    conversation_id uuid, tenant_id uuid, tenant_policy jsonb, policy jsonb, model text, revision bigint,
    estimated integer, measured integer, context_bytes bigint, has_old_results boolean,
    tool_results_hold integer, summary_hold integer, trim_hold integer,
    pending_version integer, has_active_run boolean, counted_cap integer,
    stored integer, is_counted boolean
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
           c.counted_cap, least(2147483647, c.context_tokens::bigint + c.fixed_tokens)::integer, c.last_request < c.measured_seq
    from public.conversations as c join public.tenants as t on t.id = c.tenant_id
    where c.id = any (p_conversations) and (c.check_due_at is null) is false;
end $$;

drop function due_states_with_media;

drop view snapshots;
revoke select (media) on snapshot_parts from palimpsest_background;
alter table snapshot_parts drop column media;
create view snapshots with (security_invoker = true) as
select p.tenant_id, p.conversation_id, p.version, p.parent_version, p.run_id, p.step, p.covers_through,
       coalesce(p.messages, (coalesce((
           select string_agg(earlier.part, '')
           from (select e.part from public.snapshot_parts as e
                 where e.conversation_id = p.conversation_id and e.version between p.follows[1] and p.version
                     and e.version = any (p.follows)
                 order by e.version) as earlier), '') || p.part || ']')::json) as messages,
       p.seqs, p.coverage, p.summary, p.summarizer, p.tokens, p.message_count, p.bytes, p.exchanges, p.prefix_hash,
       p.created_at, p.pins, p.claims
from public.snapshot_parts as p;
alter view snapshots alter column created_at set default now();
alter view snapshots alter column pins set default '[]';
create trigger snapshots_stored instead of insert on snapshots for each row execute function store_snapshot();
create trigger snapshots_immutable instead of update or delete on snapshots
    for each row execute function guard_snapshots();
grant insert, select on snapshots to palimpsest_service;

drop function append_turn_with_media;
drop trigger conversations_forget_media on conversations;
drop function forget_media;
revoke select (covers_through, newest_media, media_checked_through) on conversations from palimpsest_background;
revoke select (superseded_at) on messages from palimpsest_background;
alter table conversations drop column newest_media, drop column media_checked_through;
drop table message_media;
