"""Conversations that are compacted in their next pause.

Revision ID: 0109
Revises: 0108
"""

from __future__ import annotations

from migrations.scripts import run_concurrently, run_script

revision = "0109"
down_revision = "0108"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0109_pauses.sql")
    run_concurrently("0109_validate.sql")


def downgrade() -> None:
    run_script("0109_down.sql")
