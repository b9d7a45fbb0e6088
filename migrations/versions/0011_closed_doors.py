"""Functions that act for another role look nowhere else first; a revoked key stays so; statistics keep no words.

Revision ID: 0011
Revises: 0010
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0011_definers.sql")
    run_script("0011_keys.sql")
    run_script("0011_statistics.sql")


def downgrade() -> None:
    run_script("0011_down.sql")
