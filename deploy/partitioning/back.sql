-- Undoes 3_swap.sql, as long as 4_finish.sql was not run: nothing is lost, the whole table has followed all along.
-- Run as a superuser, with psql --single-transaction.
set local lock_timeout = '4s';
lock table messages in access exclusive mode;
create temporary table bound_to_messages on commit drop as
    select distinct format('create or replace view %s%s as %s', v.oid::regclass,
                           coalesce(' with (' || array_to_string(v.reloptions, ', ') || ')', ''), pg_get_viewdef(v.oid)) as again
    from pg_depend as d join pg_rewrite as r on r.oid = d.objid join pg_class as v on v.oid = r.ev_class
    where d.classid = 'pg_rewrite'::regclass and d.refobjid = 'messages'::regclass and v.relkind = 'v'
    union all
    select distinct pg_get_functiondef(d.objid) from pg_depend as d
    where d.classid = 'pg_proc'::regclass and d.refobjid = 'messages'::regclass;
drop trigger messages_followed on messages;
alter table messages rename to messages_in_parts;
alter table messages_whole rename to messages;
create trigger messages_followed after insert or update or delete on messages
    for each row execute function follow_messages('messages_in_parts');
select again from bound_to_messages \gexec
