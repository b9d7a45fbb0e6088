"""What was asked back.

Revision ID: 0103
Revises: 0102
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0103"
down_revision = "0102"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0103_recalls.sql")


def downgrade() -> None:
    run_script("0103_down.sql")
