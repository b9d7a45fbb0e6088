"""What is held against a prompt cache, and no message batch where a summary that is ready waits for its moment.

Revision ID: 0115
Revises: 0114
"""

from __future__ import annotations

from typing import Final

from migrations.scripts import amend_function, restore_function, run_script

revision = "0115"
down_revision = "0114"
branch_labels = None
depends_on = None

# It would be paid for twice.
_WANT: Final = ("0100_batches.sql", "want_batches")
_NONE_WAITS: Final = {
    "= wanted.conversation_id\n": """= wanted.conversation_id
    where not exists (
        select from public.waiting_snapshots as w where w.conversation_id = c.id and w.version is not null)
"""
}


def upgrade() -> None:
    run_script("0115_savings.sql")
    amend_function(*_WANT, _NONE_WAITS)


def downgrade() -> None:
    restore_function(*_WANT)
    run_script("0115_down.sql")
