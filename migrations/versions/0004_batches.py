"""Message batches: summaries that are not urgent, at half price.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0004_batches.sql")


def downgrade() -> None:
    run_script("0004_down.sql")
