"""Heartbeats, what is left to do in numbers and by turns, bounds on model calls, and housekeeping.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

from migrations.scripts import restore_function, run_concurrently, run_script

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # First: this part can be broken off and begun again.
    run_concurrently("0003_indexes.sql")
    run_script("0003_operations.sql")
    run_script("0003_housekeeping.sql")


def downgrade() -> None:
    restore_function("0001_guards.sql", "guard_snapshots")
    run_script("0003_down.sql")
