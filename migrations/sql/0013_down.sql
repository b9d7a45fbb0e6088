drop function read_context(
    uuid, uuid, text, integer, integer, integer, integer, boolean, text, integer);
drop function tail_window(uuid, integer, integer, double precision, double precision, integer);
-- As the function of revision 0002.
create or replace function move_head(p_conversation uuid, p_version integer) returns void language sql as $$
    update public.conversations as c
    set head_version = p_version,
        last_version = greatest(c.last_version, p_version),
        pending_version = null,
        covers_through = s.covers_through,
        context_tokens = s.tokens + tail.tokens,
        context_messages = s.message_count + tail.messages,
        context_bytes = s.bytes + tail.bytes,
        context_exchanges = s.exchanges + tail.exchanges,
        head_moved_at = c.next_seq,
        strip_thinking_through = c.next_seq - 1,
        -- The hold of a restore is one on the restored head.
        tool_results_hold = case when c.held_by_restore then 0 else c.tool_results_hold end,
        summary_hold = case when c.held_by_restore then 0 else c.summary_hold end,
        trim_hold = case when c.held_by_restore then 0 else c.trim_hold end,
        held_by_restore = false,
        revision = c.revision + 1
    from (select covers_through, tokens, message_count, bytes, exchanges from public.snapshot_parts
          where conversation_id = p_conversation and version = p_version
          union all select -1, 0, 0, 0, 0 where p_version = 0) as s,
         lateral (select coalesce(sum(public.shown_tokens(m.tokens, m.view_tokens, m.result_chars, own.counted_cap)), 0)
                             ::integer as tokens,
                         count(*)::integer as messages,
                         coalesce(sum(m.bytes), 0) as bytes,
                         (count(*) filter (where m.is_request))::integer as exchanges
                  from public.messages as m join public.conversations as own on own.id = m.conversation_id
                  where m.conversation_id = p_conversation and m.seq > s.covers_through
                    and m.superseded_at is null) as tail
    where c.id = p_conversation
$$;
alter table conversations drop column left_out;
