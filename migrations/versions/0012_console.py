"""Saved tokens are counted in the auditors' view as everywhere else.

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


def downgrade() -> None:
    run_script("0012_views_down.sql")
