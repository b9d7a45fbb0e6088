"""Look up stored messages by the keys that were written down for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, exists, select

from store.tables import gateway_prefixes, messages

if TYPE_CHECKING:
    from uuid import UUID

    from store.tables import AnyRow

_p, _m = gateway_prefixes.c, messages.c


def place_of(connection: Connection, tenant_id: UUID, key: bytes) -> AnyRow | None:
    """Return the newest place that a key was written down for: its `conversation_id` and its `seq`."""
    return connection.execute(
        select(_p.conversation_id, _p.seq)
        .where(_p.tenant_id == tenant_id, _p.key == key)
        .order_by(_p.conversation_id.desc())
        .limit(1)
    ).one_or_none()


def is_answered(connection: Connection, tenant_id: UUID, key: bytes) -> bool:
    """Return whether a message stands at a place that a key was written down for."""
    at_place = exists().where(_m.conversation_id == _p.conversation_id, _m.tenant_id == tenant_id, _m.seq == _p.seq)
    return bool(connection.scalar(select(exists().where(_p.tenant_id == tenant_id, _p.key == key, at_place))))
