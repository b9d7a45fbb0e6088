"""What a prompt cache should have had, of the calls that say what it had.

Revision ID: 0115
Revises: 0114
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0115"
down_revision = "0114"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0115_savings.sql")


def downgrade() -> None:
    run_script("0115_down.sql")
