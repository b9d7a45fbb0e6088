"""An edit reads the end of what is left and not all of it: 20,000 messages were copied for it, with their contents.

Revision ID: 0125
Revises: 0124
"""

from __future__ import annotations

from typing import Final

from migrations.scripts import amend_function, restore_function

revision = "0125"
down_revision = "0124"
branch_labels = None
depends_on = None

_RECOUNT_END: Final = ("0100_head.sql", "recount_end")
_PASSAGES: Final = {
    "with live as (": "with live as not materialized (",
    # Each of its readers goes back from the newest message and stops at the first that it looks for. By what is known
    # of all conversations the planner takes one for short, which is read faster as a whole.
    "language sql as": "language sql set enable_bitmapscan to off set enable_seqscan to off as",
}


def upgrade() -> None:
    amend_function(*_RECOUNT_END, _PASSAGES)


def downgrade() -> None:
    restore_function(*_RECOUNT_END)
