"""The hot path and the snapshots, cheaper.

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
    run_script("0007_hot_path.sql")
    run_script("0007_snapshots.sql")


def downgrade() -> None:
    run_script("0007_snapshots_down.sql")
    run_script("0007_hot_path_down.sql")
