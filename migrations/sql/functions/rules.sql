-- Return the rules in force, in the order of their messages, as `conversations.rules` has them.
create or replace function rules_in_force(p_conversation uuid) returns jsonb language sql stable as $$
    select jsonb_agg(jsonb_build_array(replace(p.id::text, '-', ''), p.seq, p.text, p.source) order by p.seq, p.id)
    from public.pins as p
        join public.messages as m on m.conversation_id = p.conversation_id and m.seq = p.seq and m.superseded_at is null
    where p.conversation_id = p_conversation and p.removed_at is null
$$;

-- Update a conversation's rules in force; its ETag changes with them. The caller holds the conversation's row, or has just
-- made it.
create or replace function list_rules(p_conversation uuid) returns void language sql as $$
    update public.conversations as c set rules = listed.rules, revision = public.next_revision(c.revision)
    from (select public.rules_in_force(p_conversation) as rules) as listed
    where c.id = p_conversation and c.rules is distinct from listed.rules
$$;

-- Update the rules of each conversation whose entries have changed.
create or replace function list_changed_rules() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    perform public.list_rules(c.conversation_id) from (select distinct conversation_id from changed) as c;
    return null;
end $$;
create or replace trigger pins_listed_when_new after insert on pins referencing new table as changed
    for each statement execute function list_changed_rules();
create or replace trigger pins_listed_when_changed after update on pins referencing new table as changed
    for each statement execute function list_changed_rules();

-- Remove the rules of messages that an edit has superseded, and those of an erased conversation.
create or replace function list_rules_of_rest() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    new.rules := case when new.erased_at is null then public.rules_in_force(new.id) end;
    return new;
end $$;
create or replace trigger conversations_list_rules before update of edits, erased_at on conversations
    for each row when (old.rules is not null) execute function list_rules_of_rest();
