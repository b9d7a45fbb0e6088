"""Messages of other shapes, as they were sent.

Revision ID: 0104
Revises: 0103
"""

from __future__ import annotations

from migrations.scripts import restore_function, run_concurrently, run_script

revision = "0104"
down_revision = "0103"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0104_shapes.sql")
    run_concurrently("0104_validate.sql")


def downgrade() -> None:
    restore_function("0100_context.sql", "read_context")
    restore_function("0100_head.sql", "move_head")
    run_script("0104_down.sql")
