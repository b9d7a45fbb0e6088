"""What few rows of a large tenant's have is looked up: runs that failed, and the answer that a client goes on from.

Revision ID: 0118
Revises: 0117
"""

from __future__ import annotations

from typing import Final

from alembic import op

from migrations.scripts import amend_function, restore_function, run_concurrently

revision = "0118"
down_revision = "0117"
branch_labels = None
depends_on = None

_RESPONSE: Final = ("0114_responses.sql", "gateway_response")
_LOOKED_UP: Final = {
    # Apart from the order, for whose sake Postgres, which keeps no statistics of these ids, would walk all rows.
    "public.gateway_recalls as r\n        where r.tenant_id = p_tenant and r.response_id = p_id": """(
            select a.* from public.gateway_recalls as a
            where a.tenant_id = p_tenant and a.response_id = p_id offset 0) as r"""
}


def upgrade() -> None:
    amend_function(*_RESPONSE, _LOOKED_UP)
    run_concurrently("0118_index.sql")


def downgrade() -> None:
    op.drop_index("ix_runs_failed")
    restore_function(*_RESPONSE)
