"""Leases name the process that holds them.

Revision ID: 0106
Revises: 0105
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0106"
down_revision = "0105"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0106_holders.sql")


def downgrade() -> None:
    run_script("0106_down.sql")
