"""What clients send and do not store is learned from counts; a count is carried on past messages without one.

Revision ID: 0016
Revises: 0015
"""

from __future__ import annotations

from alembic import op

from migrations.scripts import restore_function, run_script

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0016_counts.sql")
    run_script("0016_check_counts.sql")


def downgrade() -> None:
    restore_function("0015_context.sql", "read_context")
    restore_function("0002_hot_path.sql", "append_turn")
    op.execute("drop function due_states(uuid[], boolean)")
    restore_function("0002_checks.sql", "due_states")
    run_script("0016_counts_down.sql")
