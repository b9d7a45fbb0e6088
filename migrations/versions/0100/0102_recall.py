"""What recall has prepared of the messages that left the context.

Revision ID: 0102
Revises: 0101
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0102"
down_revision = "0101"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0102_recall.sql")


def downgrade() -> None:
    run_script("0102_down.sql")
