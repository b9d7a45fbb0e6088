"""Keys that operators make and revoke are written down; message batches that are over do not stay for good.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0010_operators.sql")
    run_script("0010_batches.sql")


def downgrade() -> None:
    run_script("0010_batches_down.sql")
    run_script("0010_operators_down.sql")
