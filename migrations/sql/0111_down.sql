drop view prompt_cache_turns, compaction_savings;
drop function usages_to_reckon;
drop function expire_turn_usages;
drop trigger conversations_forget_turn_usages on conversations;
drop function forget_turn_usages;
drop table turn_usages;
alter table run_steps drop column shared_tokens;
