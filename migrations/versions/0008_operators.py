"""What operators and auditors read: views, console sessions, a log of what operators did, numbers for the metrics.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0008_views.sql")
    run_script("0008_console.sql")
    run_script("0008_backlog.sql")


def downgrade() -> None:
    run_script("0008_backlog_down.sql")
    run_script("0008_console_down.sql")
    run_script("0008_views_down.sql")
