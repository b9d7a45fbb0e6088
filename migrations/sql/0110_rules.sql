-- The ledger of rules is the table of pins: beside what people pin, what was detected in their messages, and what users say to
-- have a rule forgotten. Code of the release before takes detected rules for pins, which keeps them as well.
-- squawk-ignore-file adding-field-with-default -- a constant
alter table pins add column source text not null default 'pinned';
alter table pins add constraint ck_pins_source check (source in ('pinned', 'detected', 'withdrawal')) not valid;
-- What of the ledger is in force, [id, seq, text, source] each: the context's read has it with the row. Null for none.
alter table conversations add column rules jsonb;
-- Statistics outlive what they quote.
alter table conversations alter column rules set statistics 0;
alter table pins alter column source set statistics 0;

create function rules_in_force(p_conversation uuid) returns jsonb language sql stable as $$
    select jsonb_agg(jsonb_build_array(replace(p.id::text, '-', ''), p.seq, p.text, p.source) order by p.seq, p.id)
    from public.pins as p
        join public.messages as m on m.conversation_id = p.conversation_id and m.seq = p.seq and m.superseded_at is null
    where p.conversation_id = p_conversation and p.removed_at is null
$$;

-- Whoever holds the conversation's row calls it, or is just making it. Another list is another answer: its ETag changes.
create function list_rules(p_conversation uuid) returns void language sql as $$
    update public.conversations as c set rules = listed.rules, revision = c.revision + 1
    from (select public.rules_in_force(p_conversation) as rules) as listed
    where c.id = p_conversation and c.rules is distinct from listed.rules
$$;

create function list_changed_rules() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    perform public.list_rules(c.conversation_id) from (select distinct conversation_id from changed) as c;
    return null;
end $$;
create trigger pins_listed_when_new after insert on pins referencing new table as changed
    for each statement execute function list_changed_rules();
create trigger pins_listed_when_changed after update on pins referencing new table as changed
    for each statement execute function list_changed_rules();

-- Rules go with the messages that an edit replaces, and with what is erased.
create function list_rules_of_rest() returns trigger language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    new.rules := case when new.erased_at is null then public.rules_in_force(new.id) end;
    return new;
end $$;
create trigger conversations_list_rules before update of edits, erased_at on conversations
    for each row when (old.rules is not null) execute function list_rules_of_rest();

-- Append a turn with what it adds to the ledger: [{id, place, text, source, if_first}], of which if_first names those that count
-- only in a message that nothing came before, or only in others. What is in force already is not entered again, and nothing
-- is withdrawn where nothing was detected.
create function append_turn_with_entries(
    p_entries jsonb,
    p_tenant uuid, p_conversation uuid, p_request uuid, p_expected_seq integer, p_replace_from integer,
    p_key text, p_body_hash bytea,
    p_messages turn_messages, p_facts turn_facts, p_usage turn_usage, p_context turn_context, p_limits context_limits,
    p_shape text, p_sent json[],
    out outcome text, out first_seq integer, out last_seq integer, out context_tokens integer, out queued boolean
) language plpgsql as $$
declare
    v_most constant integer := 200;
    v_rules jsonb;
    v_is_first boolean;
begin
    select a.* into outcome, first_seq, last_seq, context_tokens, queued
    from public.append_turn(p_tenant, p_conversation, p_request, p_expected_seq, p_replace_from, p_key, p_body_hash,
                            p_messages, p_facts, p_usage, p_context, p_limits, p_shape, p_sent) as a;
    if outcome <> 'appended' then
        return;
    end if;
    select coalesce(c.rules, '[]') into v_rules from public.conversations as c where c.id = p_conversation;
    v_is_first := not exists (select from public.messages as m where m.conversation_id = p_conversation
                              and m.seq < append_turn_with_entries.first_seq and m.superseded_at is null);
    insert into public.pins (id, tenant_id, conversation_id, seq, text, source, request_id)
    select e.id, p_tenant, p_conversation, append_turn_with_entries.first_seq + e.place, e.text, e.source, p_request
    from (select distinct on (r.text, r.source) r.*
          from jsonb_to_recordset(p_entries) as r (id uuid, place integer, text text, source text, if_first boolean)
          where r.if_first is null or r.if_first = v_is_first
          order by r.text, r.source, r.place, r.id) as e
    where case when e.source = 'detected'
               then not exists (select from jsonb_array_elements(v_rules) as known where known ->> 2 = e.text)
               else exists (select from jsonb_array_elements(v_rules) as known where known ->> 3 = 'detected') end
    order by e.place, e.id
    limit greatest(0, v_most - jsonb_array_length(v_rules));
end $$;
