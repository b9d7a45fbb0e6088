"""An edit takes away what waits only if that has something of what was edited.

Revision ID: 0120
Revises: 0119
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0120"
down_revision = "0119"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0120_edits.sql")


def downgrade() -> None:
    run_script("0120_down.sql")
