drop function cold_snapshots;
drop trigger conversations_forget_waiting_snapshots on conversations;
drop function forget_waiting_snapshots;
drop table waiting_snapshots;
