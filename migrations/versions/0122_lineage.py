"""What a restore shows as it came again is told so of each message.

Revision ID: 0122
Revises: 0121
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0122"
down_revision = "0121"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0122_lineage.sql")


def downgrade() -> None:
    run_script("0122_down.sql")
