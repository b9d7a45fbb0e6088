"""What providers counted for calls, and what compaction saved of them.

Revision ID: 0111
Revises: 0110
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0111"
down_revision = "0110"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0111_usages.sql")


def downgrade() -> None:
    run_script("0111_down.sql")
