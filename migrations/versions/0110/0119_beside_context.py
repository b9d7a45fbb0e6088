"""What a payload is made from besides the context is read in one statement.

Revision ID: 0119
Revises: 0118
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0119"
down_revision = "0118"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0119_beside_context.sql")


def downgrade() -> None:
    run_script("0119_down.sql")
