-- Beside `messages` a table in parts, with the same owner, rights, policies and triggers, that follows every write from now on.
-- Run as a superuser, with psql --variable parts=16 --single-transaction; nothing waits for it but a moment's lock.
set local lock_timeout = '4s';
select relowner::regrole as owner from pg_class where oid = 'messages'::regclass \gset
set local role :"owner";

create table messages_in_parts (like messages including all) partition by hash (conversation_id);
select format('create table messages_part_%s partition of messages_in_parts for values with (modulus %s, remainder %s)',
              part, :parts, part)
from generate_series(0, :parts - 1) as part \gexec

alter table messages_in_parts enable row level security;
alter table messages_in_parts force row level security;
select format('create policy %I on messages_in_parts as %s for %s to %s', policyname, permissive, cmd,
              array_to_string(roles, ', '))
       || coalesce(' using (' || qual || ')', '') || coalesce(' with check (' || with_check || ')', '')
from pg_policies where schemaname = 'public' and tablename = 'messages' \gexec
select format('grant %s on messages_in_parts to %I', acl.privilege_type, acl.grantee::regrole::name)
from pg_class as c, aclexplode(c.relacl) as acl
where c.oid = 'messages'::regclass and acl.grantee <> c.relowner and acl.grantee <> 0 \gexec
select format('grant %s (%I) on messages_in_parts to %I', acl.privilege_type, a.attname, acl.grantee::regrole::name)
from pg_attribute as a, aclexplode(a.attacl) as acl
where a.attrelid = 'messages'::regclass and a.attacl is not null and acl.grantee <> 0 \gexec
select replace(pg_get_triggerdef(oid), ' ON public.messages ', ' ON public.messages_in_parts ')
from pg_trigger where tgrelid = 'messages'::regclass and not tgisinternal \gexec

-- What is written to the one table is written to the other, in the same transaction, with the rights of whoever writes.
create function follow_messages() returns trigger language plpgsql as $$
begin
    if tg_op = 'INSERT' then
        execute format('insert into public.%I select ($1).*', tg_argv[0]) using new;
    elsif tg_op = 'UPDATE' then
        execute format('update public.%I set superseded_at = $1 where conversation_id = $2 and seq = $3', tg_argv[0])
            using new.superseded_at, new.conversation_id, new.seq;
    else
        -- Only erasure removes messages, those of a whole conversation, and it may not read which ones there are.
        execute format('delete from public.%I where conversation_id = $1', tg_argv[0]) using old.conversation_id;
    end if;
    return null;
end $$;
create trigger messages_followed after insert or update or delete on messages
    for each row execute function follow_messages('messages_in_parts');

-- What was there before, conversation by conversation, a transaction for each batch. Rows are locked as they are read: an edit
-- or an erasure waits for the batch, then finds its rows in both tables. It may be ended and called again.
create procedure copy_messages(p_conversations integer) language plpgsql as $$
declare
    v_after uuid := '00000000-0000-0000-0000-000000000000';
    v_batch uuid[];
begin
    loop
        select array_agg(id order by id) into v_batch
            from (select id from public.conversations where id > v_after order by id limit p_conversations) as next;
        exit when v_batch is null;
        insert into public.messages_in_parts
            select * from public.messages where conversation_id = any (v_batch) for share
            on conflict do nothing;
        commit;
        v_after := v_batch[cardinality(v_batch)];
    end loop;
end $$;
