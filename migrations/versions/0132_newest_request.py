"""Of a context with more bytes than a request reads, the request of the newest answer is always read.

Revision ID: 0132
Revises: 0131
"""

from __future__ import annotations

from typing import Final

from migrations.scripts import amend_function

revision = "0132"
down_revision = "0131"
branch_labels = None
depends_on = None

_READ: Final = ("0108_sent.sql", "read_context_in_shape")
_AS_OF_0110: Final = {
    "if v_is_whole and c.other_model_through = -1 then": (
        "if v_is_whole and c.other_model_through = -1 and c.rules is null then"
    ),
    "'other_model_through', c.other_model_through);": (
        "'other_model_through', c.other_model_through,\n"
        "                                'rules', coalesce(c.rules, '[]'));"
    ),
}
_NEWEST: Final = """(
                select max(m.seq) from public.messages as m
                where m.conversation_id = p_conversation and m.is_request and m.seq < v_answered
                  and m.superseded_at is null)"""
_WITH_REQUEST: Final = {
    "public.tail_within(p_conversation, c.covers_through, v_request, p_read_bytes));": (
        f"public.tail_within(p_conversation, c.covers_through, {_NEWEST}, p_read_bytes));\n"
        "            -- What is read belongs to another request now.\n"
        "            select coalesce(max(m.seq), v_request) into v_request from public.messages as m\n"
        "            where m.conversation_id = p_conversation and m.is_request and m.seq > c.covers_through\n"
        "              and m.seq <= least(v_starts, v_answered - 1) and m.superseded_at is null;"
    )
}


def upgrade() -> None:
    amend_function(*_READ, _AS_OF_0110 | _WITH_REQUEST)


def downgrade() -> None:
    amend_function(*_READ, _AS_OF_0110)
