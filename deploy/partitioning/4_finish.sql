-- When all is well, after some days and a backup: the whole table goes, and what the move needed with it.
-- Run as a superuser, with psql --single-transaction; if the locks are not had within 4 seconds, run it again.
set local lock_timeout = '4s';
-- The parts and the whole, in the order in which writers come by them: taken one by one they would meet writers half-way.
lock table messages in access exclusive mode;
lock table messages_whole in access exclusive mode;
drop trigger messages_followed on messages;
drop table messages_whole;
drop function follow_messages();
drop procedure copy_messages(integer);
