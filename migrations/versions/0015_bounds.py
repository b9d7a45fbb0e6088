"""Contexts read a bounded part of what is stored, and large ones only once there is room for them.

Revision ID: 0015
Revises: 0014
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0015_context.sql")


def downgrade() -> None:
    run_script("0015_down.sql")
