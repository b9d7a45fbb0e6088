"""Conversations recognized by the history that a client resends.

Revision ID: 0105
Revises: 0104
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0105"
down_revision = "0104"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0105_gateway.sql")


def downgrade() -> None:
    run_script("0105_down.sql")
