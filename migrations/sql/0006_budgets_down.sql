drop function due_waiting_summaries(integer), rate_limits_since(timestamptz), model_spending();
drop table waiting_summaries;
drop trigger run_steps_count_usage on run_steps;
drop function count_model_usage();
drop table model_usage;
revoke select (rate_limit_key, rate_limit_tenant, limits_changed_at) on tenants from palimpsest_background;
alter table model_batches drop column reserved_tokens, drop column reserved_cost_usd;
alter table runs drop column reserved_tokens, drop column reserved_cost_usd, drop column not_before;
alter table tenants drop column rate_limit_key, drop column rate_limit_tenant, drop column daily_model_tokens,
    drop column daily_model_cost_usd, drop column limits_changed_at;
