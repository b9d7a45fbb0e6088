-- The names change places, for which everybody waits once, for milliseconds; the old table follows the new one from here on.
-- Run as a superuser, with psql --single-transaction; if the lock is not had within 4 seconds, run it again.
set local lock_timeout = '4s';
lock table messages in access exclusive mode;
-- Views, and functions whose body was parsed when they were made, go by the table and not by its name: they are made again
-- from their text.
create temporary table bound_to_messages on commit drop as
    select distinct format('create or replace view %s%s as %s', v.oid::regclass,
                           coalesce(' with (' || array_to_string(v.reloptions, ', ') || ')', ''), pg_get_viewdef(v.oid)) as again
    from pg_depend as d join pg_rewrite as r on r.oid = d.objid join pg_class as v on v.oid = r.ev_class
    where d.classid = 'pg_rewrite'::regclass and d.refobjid = 'messages'::regclass and v.relkind = 'v'
    union all
    select distinct pg_get_functiondef(d.objid) from pg_depend as d
    where d.classid = 'pg_proc'::regclass and d.refobjid = 'messages'::regclass;
drop trigger messages_followed on messages;
alter table messages rename to messages_whole;
alter table messages_in_parts rename to messages;
create trigger messages_followed after insert or update or delete on messages
    for each row execute function follow_messages('messages_whole');
select again from bound_to_messages \gexec
