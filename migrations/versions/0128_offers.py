"""Whose summary is next is looked up tenant by tenant: at the end of each, all that wait were gone through and sorted.

Revision ID: 0128
Revises: 0127
"""

from __future__ import annotations

from migrations.scripts import restore_function, run_concurrently, run_script

revision = "0128"
down_revision = "0127"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0128_offers.sql")
    run_concurrently("0128_index.sql")


def downgrade() -> None:
    restore_function("0100_runs.sql", "offer_summary")
    run_script("0128_down.sql")
