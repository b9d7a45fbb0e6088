"""What a snapshot has in common with the one before it is stored once; `snapshots` is a view with all of it.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

from migrations.scripts import restore_function, run_script

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0009_snapshots.sql")
    run_script("0009_hot_path.sql")


def downgrade() -> None:
    restore_function("0002_hot_path.sql", "read_context")
    run_script("0009_down.sql")
