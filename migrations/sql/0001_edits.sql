-- What an append keeps up to date about the end of a conversation, worked out anew from what is left of it.
create function recount_end(p_conversation uuid) returns void language sql as $$
    with live as (
        select seq, role, content, is_request, has_thinking, result_chars from public.messages
        where conversation_id = p_conversation and superseded_at is null
    ), newest as (
        select role, content, is_request from live order by seq desc limit 1
    ), calls as (
        select coalesce(array_agg(block ->> 'id' order by block ->> 'id' collate "C"), '{}') as ids
        from newest, lateral json_array_elements(
            case when newest.role = 'assistant' and json_typeof(newest.content) = 'array'
                 then newest.content else '[]'::json end) as block
        where block ->> 'type' = 'tool_use'
    )
    update public.conversations as c
    set open_calls = calls.ids,
        in_loop = cardinality(calls.ids) > 0
            or exists (select from newest where newest.role = 'user' and not newest.is_request),
        loop_has_thinking = exists (
            select from live where has_thinking
                and seq > coalesce((select max(seq) from live where is_request), -1)),
        last_request = coalesce((select max(seq) from live where is_request), -1),
        newest_result = coalesce((select max(seq) from live where result_chars is not null), -1),
        results_cut_through = -1,
        tool_results_hold = 0,
        summary_hold = 0,
        trim_hold = 0,
        measured_tokens = null,
        measured_input_tokens = null,
        measured_version = null
    from calls
    where c.id = p_conversation
$$;

-- A snapshot and everything it came from, newest first.
create function snapshot_chain(p_conversation uuid, p_version integer)
returns table (version integer, covers_through integer) language sql stable as $$
    with recursive chain as (
        select s.version, s.parent_version, s.covers_through from public.snapshots as s
            where s.conversation_id = p_conversation and s.version = p_version
        union all
        select s.version, s.parent_version, s.covers_through from chain
            join public.snapshots as s on s.conversation_id = p_conversation and s.version = chain.parent_version
    )
    select chain.version, chain.covers_through from chain order by chain.version desc
$$;

-- The newest snapshot that the head came from and that covers no message from p_from on; 0 for none.
create function newest_version_below(p_conversation uuid, p_from integer) returns integer language sql stable as $$
    select coalesce(max(chain.version), 0) from public.conversations as c,
        lateral public.snapshot_chain(p_conversation, c.head_version) as chain
    where c.id = p_conversation and chain.covers_through < p_from
$$;

-- Take the messages from p_from on out of the context. They stay stored; the head goes back along its chain to the newest
-- snapshot that covers none of them, and a run that was started on the old prefix fails its compare-and-swap.
create function supersede(p_conversation uuid, p_from integer) returns void language plpgsql as $$
declare
    c record;
    v_version integer;
begin
    update public.messages set superseded_at = now()
        where conversation_id = p_conversation and seq >= p_from and superseded_at is null;
    update public.conversations set edits = edits + 1, pending_version = null where id = p_conversation
        returning head_version, covers_through, next_seq, strip_thinking_through into c;
    v_version := public.newest_version_below(p_conversation, p_from);
    perform public.move_head(p_conversation, v_version);
    if v_version = c.head_version then
        -- Nothing before the messages that are left has changed: what was signed stays valid.
        update public.conversations
            set strip_thinking_through = c.strip_thinking_through, head_moved_at = least(head_moved_at, p_from)
            where id = p_conversation;
    end if;
    perform public.recount_end(p_conversation);
end $$;
