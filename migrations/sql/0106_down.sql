drop function expire_missed_leases;
drop function expire_leases;
drop trigger runs_forget_holder on runs;
drop function forget_holder;
revoke select (worker, process_id) on runs from palimpsest_background;
revoke select (id, seen_at, beat_seconds) on processes from palimpsest_background;
alter table runs drop column process_id;
alter table processes drop column place, drop column pid_started, drop column beat_seconds;
