"""By which name a provider has an answer within which recall was answered.

Revision ID: 0114
Revises: 0113
"""

from __future__ import annotations

from migrations.scripts import amend_function, restore_function, run_concurrently, run_script

revision = "0114"
down_revision = "0113"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0114_responses.sql")
    amend_function(
        "0105_gateway.sql",
        "gateway_note",
        {
            "resent, shown, results)": "resent, shown, results,\n        response_id, last_response_id)",
            "r.value -> 3, r.value -> 4": "r.value -> 3, r.value -> 4, r.value ->> 5, r.value ->> 6",
        },
    )
    run_concurrently("0114_index.sql")


def downgrade() -> None:
    restore_function("0105_gateway.sql", "gateway_note")
    run_script("0114_down.sql")
