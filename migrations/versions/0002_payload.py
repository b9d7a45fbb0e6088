"""Context that is not history, pins, and runs by hand, after an overflow and for context blocks.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

from migrations.scripts import restore_function, run_script

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0002_tables.sql")
    run_script("0002_hot_path.sql")
    run_script("0002_checks.sql")
    run_script("0002_webhooks.sql")


def downgrade() -> None:
    restore_function("0001_hot_path.sql", "move_head")
    restore_function("0001_hot_path.sql", "tail_start")
    restore_function("0001_edits.sql", "supersede")
    restore_function("0001_edits.sql", "newest_version_below")
    restore_function("0001_security.sql", "check_states")
    run_script("0002_down.sql")
