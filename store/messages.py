"""Messages: the originals, read for the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from store.tables import messages

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from store.tables import AnyRow

_m = messages.c
_ORIGINAL = (_m.seq, _m.role, _m.content, _m.tokens, _m.created_at, _m.superseded_at)


def page(connection: Connection, tenant_id: UUID, conversation_id: UUID, *, after: int, limit: int) -> Sequence[AnyRow]:
    """Return up to `limit` originals with a seq over `after`, superseded ones included."""
    return connection.execute(
        select(*_ORIGINAL)
        .where(_m.tenant_id == tenant_id, _m.conversation_id == conversation_id, _m.seq > after)
        .order_by(_m.seq)
        .limit(limit)
    ).all()


def get(connection: Connection, tenant_id: UUID, conversation_id: UUID, seq: int) -> AnyRow | None:
    """Return one original."""
    return connection.execute(
        select(*_ORIGINAL).where(_m.tenant_id == tenant_id, _m.conversation_id == conversation_id, _m.seq == seq)
    ).one_or_none()
