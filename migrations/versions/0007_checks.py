"""Checks whose marks come off without waiting for the disk.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0007_checks.sql")


def downgrade() -> None:
    run_script("0007_checks_down.sql")
