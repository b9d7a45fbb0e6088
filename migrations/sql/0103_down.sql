drop view recalls;
drop function expire_recall_requests;
drop trigger conversations_forget_recall_requests on conversations;
drop function forget_recall_requests;
drop table recall_requests;
