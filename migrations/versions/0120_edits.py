"""An edit takes away what waits, and lifts holds, only where that has something of what was edited.

What waits for a loop's end, or for a cold cache, waits on where the edit comes after it. What led to nothing does so
still where nine tenths of the context are as they were: another answer is no other conversation.

Revision ID: 0120
Revises: 0119
"""

from __future__ import annotations

from typing import Final

from migrations.scripts import amend_function, restore_function, run_script

revision = "0120"
down_revision = "0119"
branch_labels = None
depends_on = None

_SUPERSEDE: Final = ("0100_head.sql", "supersede")
_PASSAGES: Final = {
    "set edits = edits + 1, pending_version = null where": "set edits = edits + 1 where",
    "trim_hold\n        into c;": "trim_hold,\n            pending_version, edits, context_tokens\n        into c;",
    "least(head_moved_at, p_from)\n": (
        "least(head_moved_at, p_from),\n"
        "                pending_version = case when public.stands_before(id, c.pending_version, p_from)"
        " then c.pending_version end\n"
    ),
    "set held_by_restore = true,": "set held_by_restore = c.held_by_restore,",
    "where id = p_conversation and c.held_by_restore;\n": (
        "where id = p_conversation and (c.held_by_restore or context_tokens >= 0.9 * c.context_tokens);\n"
        "        update public.waiting_snapshots as w set edits = c.edits\n"
        "            where w.conversation_id = p_conversation and w.edits = c.edits - 1\n"
        "                and public.stands_before(w.conversation_id, w.version, p_from);\n"
    ),
}


def upgrade() -> None:
    run_script("0120_stands_before.sql")
    amend_function(*_SUPERSEDE, _PASSAGES)


def downgrade() -> None:
    restore_function(*_SUPERSEDE)
    run_script("0120_down.sql")
