drop trigger conversations_forget_recall_segments on conversations;
drop function forget_recall_segments;
drop table recall_segments;
