"""What others were given a name of: messages by the keys that were written down for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import Connection, exists, select

from store.tables import gateway_prefixes, messages

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from store.tables import AnyRow

_p, _m = gateway_prefixes.c, messages.c
_OTHERS: Final = gateway_prefixes.alias()


class KeptOriginals(NamedTuple):
    """Which of some texts are stored, and the conversation that more of them belong to, None for a new one."""

    keys: frozenset[bytes]
    conversation_id: UUID | None


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


def kept(connection: Connection, tenant_id: UUID, keys: Sequence[bytes]) -> KeptOriginals:
    """Return which keys have a message. More go where some of them are and nothing else is."""
    rows = connection.execute(
        select(_p.key, _p.conversation_id).where(_p.tenant_id == tenant_id, _p.key.in_(keys))
    ).all()
    others = exists().where(
        _OTHERS.c.conversation_id == _p.conversation_id, _OTHERS.c.tenant_id == tenant_id, _OTHERS.c.key.not_in(keys)
    )
    own = (
        select(_p.conversation_id)
        .where(_p.tenant_id == tenant_id, _p.key.in_(keys), ~others)
        .order_by(_p.conversation_id.desc())
        .limit(1)
    )
    return KeptOriginals(frozenset(row.key for row in rows), connection.scalar(own) if rows else None)


def content_of(connection: Connection, tenant_id: UUID, key: bytes) -> str | None:
    """Return the content of the message that a key stands for, superseded or not, as JSON text; None for none."""
    return connection.scalar(
        select(_m.content)
        .join(gateway_prefixes, (_p.conversation_id == _m.conversation_id) & (_p.seq == _m.seq))
        .where(_p.tenant_id == tenant_id, _m.tenant_id == tenant_id, _p.key == key)
        .order_by(_p.conversation_id.desc())
        .limit(1)
    )
