create or replace function supersede(p_conversation uuid, p_from integer) returns void
language plpgsql as $$
declare
    c record;
    v_version integer;
begin
    update public.messages set superseded_at = now()
        where conversation_id = p_conversation and seq >= p_from and superseded_at is null;
    update public.context_blocks set superseded_at = now()
        where conversation_id = p_conversation and seq >= p_from and superseded_at is null;
    update public.context_blocks set carried_until = null
        where conversation_id = p_conversation and carried_until >= p_from;
    update public.conversations set edits = edits + 1 where id = p_conversation
        returning head_version, next_seq, strip_thinking_through, held_by_restore, tool_results_hold, summary_hold, trim_hold,
            pending_version, edits, context_tokens
        into c;
    v_version := public.newest_version_below(p_conversation, p_from);
    perform public.move_head(p_conversation, v_version);
    perform public.recount_end(p_conversation);
    perform public.recount_carried(p_conversation);
    if v_version = c.head_version then
        -- Nothing before the messages that are left has changed: what was signed stays valid, what was restored restored.
        update public.conversations
            set strip_thinking_through = c.strip_thinking_through, head_moved_at = least(head_moved_at, p_from),
                pending_version = case when public.stands_before(id, c.pending_version, p_from) then c.pending_version end
            where id = p_conversation;
        update public.conversations
            set held_by_restore = c.held_by_restore, tool_results_hold = c.tool_results_hold, summary_hold = c.summary_hold,
                trim_hold = c.trim_hold
            where id = p_conversation and (c.held_by_restore or context_tokens >= 0.9 * c.context_tokens);
        update public.waiting_snapshots as w set edits = c.edits
            where w.conversation_id = p_conversation and w.edits = c.edits - 1
                and public.stands_before(w.conversation_id, w.version, p_from);
    end if;
end $$;
