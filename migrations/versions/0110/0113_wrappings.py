"""A text of another shape is stored once, and what was sent around it beside it.

Revision ID: 0113
Revises: 0112
"""

from __future__ import annotations

from migrations.scripts import restore_function, run_script

revision = "0113"
down_revision = "0112"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0113_wrappings.sql")


def downgrade() -> None:
    run_script("0113_down.sql")
    restore_function("0108_sent.sql", "as_sent")
