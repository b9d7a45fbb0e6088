"""A check knows a context's images and files, and begins a run where they are over a limit.

Revision ID: 0131
Revises: 0130
"""

from __future__ import annotations

from migrations.scripts import restore_function, run_script

revision = "0131"
down_revision = "0130"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0131_media.sql")


def downgrade() -> None:
    run_script("0131_down.sql")
    restore_function("0112_claims.sql", "store_snapshot")
