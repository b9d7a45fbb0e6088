"""A count that the messages cannot explain is not believed alone, and messages may have times of their own, or none.

Revision ID: 0129
Revises: 0128
"""

from __future__ import annotations

from typing import Final

from migrations.scripts import amend_function, restore_function, run_script

revision = "0129"
down_revision = "0128"
branch_labels = None
depends_on = None

_LEARN_COUNT: Final = ("0100_append.sql", "learn_count")
_APPEND_TURN: Final = ("0108_sent.sql", "append_turn")
_BEFORE: Final = {"revision = c.revision + 1": "revision = public.next_revision(c.revision)"}
_MEDIA: Final = r"""'"(type|of)"\s*:\s*"(image|document|container_upload|audio|input_audio|file)"'"""
_SEEN: Final = "(c.context_tokens::bigint + c.fixed_tokens + p_facts.seen_tokens)"
_PASSAGES: Final = {
    **_BEFORE,
    "    v_last_count integer[];\n": (
        "    v_last_count integer[];\n"
        "    v_excess integer := 0;\n"
        "    v_media bigint;\n"
        "    v_times constant timestamptz[] := nullif(current_setting('app.message_times', true), '');\n"
    ),
    "l.last_count into v_samples, v_ratio, v_unstored, v_last_count\n": (
        "l.last_count,\n"
        f"               case when p_usage.input_tokens > l.unstored + 2 * {_SEEN} + 12000\n"
        "                    then least(1000000, p_usage.input_tokens - l.unstored\n"
        f"                                        - ceil(l.ratio * {_SEEN}))::integer else 0 end\n"
        "        into v_samples, v_ratio, v_unstored, v_last_count, v_excess\n"
    ),
    "    update public.conversations as c\n    set next_seq": (
        "    if v_excess > 0 then\n"
        "        -- Rare: the messages cannot explain the count: it is not believed. Media may be larger than anybody\n"
        "        -- can read of them: what they have too much is theirs, and teaches nothing about the rest.\n"
        "        select max(m.place) into v_media\n"
        "        from unnest(p_messages.contents[:p_facts.after_answer]) with ordinality as m (content, place)\n"
        f"        where m.content::text ~ {_MEDIA};\n"
        "        if v_media is not null then\n"
        "            v_total := v_total + v_excess;\n"
        "        elsif not exists (\n"
        "            select from public.conversations as c join public.messages as m on m.conversation_id = c.id\n"
        "            where c.id = p_conversation and m.seq >= coalesce(c.measured_seq, 0) and m.superseded_at is null\n"
        f"              and m.content::text ~ {_MEDIA}) then\n"
        "            p_usage.input_tokens := null;\n"
        "        end if;\n"
        "        if p_usage.input_tokens is not null then\n"
        "            v_samples := null;\n"
        "            v_ratio := null;\n"
        "            v_unstored := null;\n"
        "            v_last_count := null;\n"
        "        end if;\n"
        "    end if;\n\n"
        "    update public.conversations as c\n    set next_seq"
    ),
    "has_thinking, shape, sent)\n": "has_thinking, shape, sent, said_at, is_undated)\n",
    "m.role, m.content, m.tokens,\n           m.tokens - coalesce(": (
        "m.role, m.content, m.tokens + m.excess,\n           m.tokens + m.excess - coalesce("
    ),
    "m.thinking, p_shape, m.sent\n    from unnest(": (
        "m.thinking, p_shape, m.sent,\n"
        "           v_times[m.place], case when v_times[m.place] is null then v_times is not null or null end\n"
        "    from (select every.*, case when every.place = v_media then v_excess else 0 end as excess from unnest("
    ),
    "as m (role, content, tokens, bytes, chars, request, thinking, sent, place);": (
        "as every (role, content, tokens, bytes, chars, request, thinking, sent, place)) as m;"
    ),
}


def upgrade() -> None:
    run_script("0129_counts.sql")
    amend_function(*_APPEND_TURN, _PASSAGES)


def downgrade() -> None:
    amend_function(*_APPEND_TURN, _BEFORE)
    restore_function(*_LEARN_COUNT)
    run_script("0129_down.sql")
