"""The longest beginning of a resent history is looked for from the newest on, and no further than it is.

Revision ID: 0116
Revises: 0115
"""

from __future__ import annotations

from typing import Final

from migrations.scripts import amend_function, restore_function

revision = "0116"
down_revision = "0115"
branch_labels = None
depends_on = None

_FIND: Final = ("0105_gateway.sql", "gateway_find")
_RECALLS: Final = (
    "recalls := public.gateway_recalls_of(p_tenant, c.id, coalesce(covers_through, -1), coalesce(head_seqs, '{}'));"
)
_SOONER: Final = {
    # By what the rows are sorted by in the end: else every beginning is looked up before the newest is taken.
    "(key, place) order by each.place desc)": "(key, place) order by each.place::integer desc)",
    _RECALLS: f"""if exists (select from public.gateway_recalls as r where r.conversation_id = c.id) then
        {_RECALLS}
    end if;""",
}


def upgrade() -> None:
    amend_function(*_FIND, _SOONER)


def downgrade() -> None:
    restore_function(*_FIND)
