"""No message batch is wished for where a summary that is ready waits for a pause: it would be paid for twice.

Revision ID: 0116
Revises: 0115
"""

from __future__ import annotations

from typing import Final

from migrations.scripts import amend_function, restore_function

revision = "0116"
down_revision = "0115"
branch_labels = None
depends_on = None

_WANT: Final = ("0100_batches.sql", "want_batches")
_NONE_WAITS: Final = {
    "= wanted.conversation_id\n": """= wanted.conversation_id
    where not exists (
        select from public.waiting_snapshots as w where w.conversation_id = c.id and w.version is not null)
"""
}


def upgrade() -> None:
    amend_function(*_WANT, _NONE_WAITS)


def downgrade() -> None:
    restore_function(*_WANT)
