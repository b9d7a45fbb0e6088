drop function append_turn_at;
drop function counts_agree;
-- A message without a time gets that of its conversation: code of before reads none without.
alter table messages disable trigger user;
update messages as m set created_at = c.created_at
from conversations as c where c.id = m.conversation_id and m.created_at is null;
alter table messages enable trigger user;
alter table messages alter column created_at set not null;
