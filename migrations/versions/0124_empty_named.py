"""A gateway finds the conversation that a request names where that has no message yet, too.

Revision ID: 0124
Revises: 0123
"""

from __future__ import annotations

from typing import Final

from migrations.scripts import amend_function

revision = "0124"
down_revision = "0123"
branch_labels = None
depends_on = None

_FIND: Final = ("0105_gateway.sql", "gateway_find")
_RECALLS: Final = (
    "recalls := public.gateway_recalls_of(p_tenant, c.id, coalesce(covers_through, -1), coalesce(head_seqs, '{}'));"
)
_AS_OF_0116: Final = {
    "(key, place) order by each.place desc)": "(key, place) order by each.place::integer desc)",
    _RECALLS: f"""if exists (select from public.gateway_recalls as r where r.conversation_id = c.id) then
        {_RECALLS}
    end if;""",
}
_EMPTY_TOO: Final = {" and r.next_seq > 0\n": "\n"}


def upgrade() -> None:
    amend_function(*_FIND, {**_AS_OF_0116, **_EMPTY_TOO})


def downgrade() -> None:
    amend_function(*_FIND, _AS_OF_0116)
