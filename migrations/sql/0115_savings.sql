-- What a cache should have had is summed over the calls whose usage says what it had, as what it had is: the two can be
-- held against each other.
create or replace view compaction_savings with (security_invoker = true) as
select t.name as tenant,
       u.conversation_id,
       (u.answered_at at time zone 'utc')::date as day,
       count(*) as calls,
       sum(u.input_tokens) as input_tokens,
       sum(u.cached_tokens) as cached_tokens,
       sum(u.expected_tokens) filter (where u.cached_tokens is not null) as expected_tokens,
       sum(u.saved_tokens) as saved_tokens,
       sum(u.cost_usd) as cost_usd,
       sum(u.saved_usd) as saved_usd,
       sum(u.saved_uncached_usd) as saved_uncached_usd,
       count(u.cached_tokens) as calls_with_cache_counts
from turn_usages as u join tenants as t on t.id = u.tenant_id
group by t.name, u.conversation_id, 3;
