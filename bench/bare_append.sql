-- An append with the same columns, counters and messages as the product's, and nothing around it: no row-level
-- security, no idempotency key, no due check, no index of due checks.
create schema bench;
create table bench.conversations (like public.conversations including all)
    with (fillfactor = 70, toast_tuple_target = 512, autovacuum_vacuum_scale_factor = 0.02);
create table bench.messages (like public.messages including all);
do $$
declare
    v_index regclass;
begin
    for v_index in select indexrelid::regclass from pg_index
                   where indrelid = 'bench.conversations'::regclass
                     and pg_get_indexdef(indexrelid) like '%check_due_at%' loop
        execute format('drop index %s', v_index);
    end loop;
end $$;

create function bench.append_turn(
    p_conversation uuid, p_roles text[], p_contents json[], p_tokens integer[], p_requests boolean[],
    p_thinking boolean[], p_total_tokens integer,
    out first_seq integer, out last_seq integer, out context_tokens integer
) language plpgsql as $$
declare
    v_count constant integer := cardinality(p_roles);
    v_next integer;
begin
    update bench.conversations as c
    set next_seq = c.next_seq + v_count,
        turn_count = c.turn_count + 1,
        revision = c.revision + 1,
        context_tokens = c.context_tokens + p_total_tokens,
        context_messages = c.context_messages + v_count
    where c.id = p_conversation
    returning c.next_seq, c.context_tokens into v_next, context_tokens;
    first_seq := v_next - v_count;
    last_seq := v_next - 1;
    insert into bench.messages (tenant_id, conversation_id, seq, role, content, tokens, view_tokens, is_request,
                                has_thinking)
    select '00000000-0000-7000-8000-000000000000', p_conversation, v_next - v_count + m.place::integer - 1, m.role,
           m.content, m.tokens, m.tokens, m.request, m.thinking
    from unnest(p_roles, p_contents, p_tokens, p_requests, p_thinking)
        with ordinality as m (role, content, tokens, request, thinking, place);
end $$;
