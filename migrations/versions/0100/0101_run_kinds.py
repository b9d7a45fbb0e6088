"""What a run does is a column of its own.

Revision ID: 0101
Revises: 0100
"""

from __future__ import annotations

from migrations.scripts import run_concurrently, run_script

revision = "0101"
down_revision = "0100"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0101_run_kinds.sql")
    run_concurrently("0101_validate.sql")


def downgrade() -> None:
    run_script("0101_down.sql")
