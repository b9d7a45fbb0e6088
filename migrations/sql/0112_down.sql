drop view claims;
revoke select (run_id, claims) on snapshot_parts from palimpsest_auditor;
drop view snapshots;
alter table snapshot_parts drop column claims;
create view snapshots with (security_invoker = true) as
select p.tenant_id, p.conversation_id, p.version, p.parent_version, p.run_id, p.step, p.covers_through,
       coalesce(p.messages, (coalesce((
           select string_agg(earlier.part, '')
           from (select e.part from public.snapshot_parts as e
                 where e.conversation_id = p.conversation_id and e.version between p.follows[1] and p.version
                     and e.version = any (p.follows)
                 order by e.version) as earlier), '') || p.part || ']')::json) as messages,
       p.seqs, p.coverage, p.summary, p.summarizer, p.tokens, p.message_count, p.bytes, p.exchanges, p.prefix_hash,
       p.created_at, p.pins
from public.snapshot_parts as p;
alter view snapshots alter column created_at set default now();
alter view snapshots alter column pins set default '[]';
create trigger snapshots_stored instead of insert on snapshots for each row execute function store_snapshot();
create trigger snapshots_immutable instead of update or delete on snapshots
    for each row execute function guard_snapshots();
grant insert, select on snapshots to palimpsest_service;
