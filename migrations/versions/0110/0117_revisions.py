"""A revision of a conversation grows by a random step, so that what is lost and what comes instead differ in it.

Revision ID: 0117
Revises: 0116
"""

from __future__ import annotations

from typing import Final

from migrations.scripts import amend_function, restore_function, run_script

revision = "0117"
down_revision = "0116"
branch_labels = None
depends_on = None

_RAISE_IT: Final = (
    ("0108_sent.sql", "append_turn"),
    ("0104_shapes.sql", "move_head"),
    ("0100_erasure.sql", "erase_conversation"),
    ("0110_rules.sql", "list_rules"),
)
_RECOUNT: Final = ("0100_head.sql", "recount_results")


def upgrade() -> None:
    run_script("0117_revisions.sql")
    for function in _RAISE_IT:
        amend_function(*function, {"revision = c.revision + 1": "revision = public.next_revision(c.revision)"})
    amend_function(*_RECOUNT, {"revision = revision + 1": "revision = public.next_revision(revision)"})


def downgrade() -> None:
    for function in (*_RAISE_IT, _RECOUNT):
        restore_function(*function)
    run_script("0117_down.sql")
