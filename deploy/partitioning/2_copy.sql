-- Takes as long as it takes; services go on. Run as a superuser (row-level security is forced on the owner), without a
-- transaction around it, as often as it is ended.
call copy_messages(100);
analyze messages_in_parts;
-- Both numbers have to be 0.
select count(*) filter (where p.seq is null) as missing, count(*) filter (where m.seq is null) as too_many
from messages as m full join messages_in_parts as p using (conversation_id, seq)
where p.seq is null or m.seq is null or m.superseded_at is distinct from p.superseded_at;
