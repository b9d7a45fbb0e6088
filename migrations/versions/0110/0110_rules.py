"""The ledger of rules.

Revision ID: 0110
Revises: 0109
"""

from __future__ import annotations

from migrations.scripts import amend_function, restore_function, run_concurrently, run_script

revision = "0110"
down_revision = "0109"
branch_labels = None
depends_on = None

# The rules in force are among what the served context depends on: nothing more is read, most answers stay as they were.
_READ = ("0108_sent.sql", "read_context_in_shape")
_WITH_RULES = {
    "if v_is_whole and c.other_model_through = -1 then": (
        "if v_is_whole and c.other_model_through = -1 and c.rules is null then"
    ),
    "'other_model_through', c.other_model_through);": (
        "'other_model_through', c.other_model_through,\n"
        "                                'rules', coalesce(c.rules, '[]'));"
    ),
}


def upgrade() -> None:
    run_script("0110_rules.sql")
    amend_function(*_READ, _WITH_RULES)
    run_concurrently("0110_validate.sql")


def downgrade() -> None:
    restore_function(*_READ)
    run_script("0110_down.sql")
