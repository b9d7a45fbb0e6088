"""Snapshots off the way to the head are found in one pass, and no other conversations than theirs are locked.

Revision ID: 0126
Revises: 0125
"""

from __future__ import annotations

from migrations.scripts import restore_function, run_script

revision = "0126"
down_revision = "0125"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0126_side_branches.sql")


def downgrade() -> None:
    restore_function("0100_housekeeping.sql", "expire_snapshots")
