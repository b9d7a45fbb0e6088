"""What was sent in another shape stands in the message's own row.

Revision ID: 0108
Revises: 0107
"""

from __future__ import annotations

from migrations.scripts import restore_function, run_concurrently, run_script

revision = "0108"
down_revision = "0107"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0108_sent.sql")
    run_concurrently("0108_validate.sql")


def downgrade() -> None:
    restore_function("0100_guards.sql", "guard_messages")
    restore_function("0104_shapes.sql", "read_context_in_shape")
    restore_function("0104_shapes.sql", "sent_of_context")
    restore_function("0104_shapes.sql", "append_sent_turn")
    restore_function("0105_gateway.sql", "gateway_recalls_of")
    run_script("0108_down.sql")
    restore_function("0100_append.sql", "append_turn")
