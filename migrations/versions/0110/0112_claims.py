"""What the lines of a summary rest on, beside the summary.

Revision ID: 0112
Revises: 0111
"""

from __future__ import annotations

from migrations.scripts import restore_function, run_script

revision = "0112"
down_revision = "0111"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0112_claims.sql")


def downgrade() -> None:
    restore_function("0100_snapshots.sql", "store_snapshot")
    run_script("0112_down.sql")
