drop function append_turn_at;
drop function counts_agree;
alter table messages drop column said_at, drop column is_undated;
