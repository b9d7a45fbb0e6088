"""Workers say what they make summaries with.

Revision ID: 0013
Revises: 0012
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0013_summarizers.sql")


def downgrade() -> None:
    run_script("0013_summarizers_down.sql")
