"""Workers say what they make summaries with.

Revision ID: 0014
Revises: 0013
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0014_summarizers.sql")


def downgrade() -> None:
    run_script("0014_summarizers_down.sql")
