"""Keys that expire and rotate, and budgets of model tokens and money.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0006_keys.sql")
    run_script("0006_budgets.sql")


def downgrade() -> None:
    run_script("0006_budgets_down.sql")
    run_script("0006_keys_down.sql")
