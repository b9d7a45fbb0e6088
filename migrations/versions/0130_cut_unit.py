"""A context reads the round that does not fit whole too: it is cut, not left out.

Revision ID: 0130
Revises: 0129
"""

from __future__ import annotations

from typing import Final

from migrations.scripts import amend_function, restore_function, run_script

revision = "0130"
down_revision = "0129"
branch_labels = None
depends_on = None

_SCRIPT: Final = "0100_context.sql"
_AS_OF_0123: Final = {
    "    starts := coalesce(starts, p_covers + 1);\n": (
        "    -- All of it was gone through, and fits: what the head shows of its first exchange may, too.\n"
        "    if starts is null or v_tokens <= p_room then\n"
        "        starts := p_covers + 1;\n"
        "    end if;\n"
    )
}


def upgrade() -> None:
    run_script("0130_cut_unit.sql")


def downgrade() -> None:
    restore_function(_SCRIPT, "tail_window")
    amend_function(_SCRIPT, "tail_window", _AS_OF_0123)
