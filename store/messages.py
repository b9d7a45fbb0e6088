"""Messages: the originals, read for the audit."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

import msgspec
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


def times(connection: Connection, conversation_id: UUID, first_seq: int, last_seq: int) -> dict[int, str]:
    """Return when messages came, RFC 3339 by seq."""
    rows = connection.execute(
        select(_m.seq, _m.created_at).where(_m.conversation_id == conversation_id, _m.seq.between(first_seq, last_seq))
    )
    return {row.seq: row.created_at.astimezone(UTC).isoformat(timespec="seconds") for row in rows}


def contents(connection: Connection, conversation_id: UUID, seqs: Sequence[int]) -> dict[int, Any]:
    """Return the decoded contents of messages by seq."""
    rows = connection.execute(select(_m.seq, _m.content).where(_m.conversation_id == conversation_id, _m.seq.in_(seqs)))
    return {row.seq: msgspec.json.decode(row.content) for row in rows}


def get(connection: Connection, tenant_id: UUID, conversation_id: UUID, seq: int) -> AnyRow | None:
    """Return one original."""
    return connection.execute(
        select(*_ORIGINAL).where(_m.tenant_id == tenant_id, _m.conversation_id == conversation_id, _m.seq == seq)
    ).one_or_none()
