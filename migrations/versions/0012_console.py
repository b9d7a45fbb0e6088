"""Saved tokens are counted in the auditors' view as everywhere else; more of what operators do is written down.

Revision ID: 0012
Revises: 0011
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0012_views.sql")
    run_script("0012_operators.sql")


def downgrade() -> None:
    run_script("0012_operators_down.sql")
    run_script("0012_views_down.sql")
