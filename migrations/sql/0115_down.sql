drop view compaction_savings;
create view compaction_savings with (security_invoker = true) as
select t.name as tenant,
       u.conversation_id,
       (u.answered_at at time zone 'utc')::date as day,
       count(*) as calls,
       sum(u.input_tokens) as input_tokens,
       sum(u.cached_tokens) as cached_tokens,
       sum(u.expected_tokens) as expected_tokens,
       sum(u.saved_tokens) as saved_tokens,
       sum(u.cost_usd) as cost_usd,
       sum(u.saved_usd) as saved_usd,
       sum(u.saved_uncached_usd) as saved_uncached_usd
from turn_usages as u join tenants as t on t.id = u.tenant_id
group by t.name, u.conversation_id, 3;
grant select on compaction_savings to palimpsest_auditor;
