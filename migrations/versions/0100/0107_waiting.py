"""Snapshots that wait until it pays that they become the head.

Revision ID: 0107
Revises: 0106
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0107"
down_revision = "0106"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0107_waiting.sql")


def downgrade() -> None:
    run_script("0107_down.sql")
