"""A tail that fits is read from its first message on, wherever in an exchange that stands.

Revision ID: 0123
Revises: 0122
"""

from __future__ import annotations

from typing import Final

from migrations.scripts import amend_function, restore_function

revision = "0123"
down_revision = "0122"
branch_labels = None
depends_on = None

_SCRIPT: Final = "0100_context.sql"


def upgrade() -> None:
    amend_function(
        _SCRIPT,
        "tail_window",
        {
            "    starts := coalesce(starts, p_covers + 1);\n": (
                "    -- All of it was gone through, and fits: what the head shows of its first exchange may, too.\n"
                "    if starts is null or v_tokens <= p_room then\n"
                "        starts := p_covers + 1;\n"
                "    end if;\n"
            )
        },
    )
    amend_function(
        _SCRIPT,
        "tail_within",
        {
            "    select coalesce(min(seq)": (
                "    select case when max(bytes) <= p_bytes then p_covers + 1 else coalesce(min(seq)"
            ),
            "max(seq), p_covers + 1)\n": "max(seq), p_covers + 1) end\n",
        },
    )


def downgrade() -> None:
    for function in ("tail_window", "tail_within"):
        restore_function(_SCRIPT, function)
