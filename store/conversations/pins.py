"""Pins: what people want to stay in the context word for word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, func, insert, literal, select, update

from runtime import ids
from store.tables import messages, pins

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from store.tables import AnyRow

_p, _m = pins.c, messages.c
_SHOWN: Final = (_p.id, _p.seq, _p.text, _p.created_at)


def add(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, seq: int, text: str, request_id: UUID
) -> AnyRow:
    """Pin a text of message `seq`; return the pin, the one that is there if the same was pinned before."""
    same = connection.execute(
        select(*_SHOWN).where(*_of(tenant_id, conversation_id), _p.seq == seq, _p.text == text)
    ).one_or_none()
    if same is not None:
        return same
    return connection.execute(
        insert(pins)
        .values(
            id=ids.new_id(),
            tenant_id=tenant_id,
            conversation_id=conversation_id,
            seq=seq,
            text=text,
            request_id=request_id,
        )
        .returning(*_SHOWN)
    ).one()


def page(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> Sequence[AnyRow]:
    """Return the pins in force, in the order they were made; those of superseded messages are not."""
    live = (_m.conversation_id == _p.conversation_id) & (_m.seq == _p.seq) & _m.superseded_at.is_(None)
    return connection.execute(
        select(*_SHOWN).join(messages, live).where(*_of(tenant_id, conversation_id)).order_by(_p.id)
    ).all()


def remove(connection: Connection, tenant_id: UUID, conversation_id: UUID, pin_id: UUID) -> bool:
    """Take a pin off; False if there is none of that id."""
    changed = connection.execute(
        update(pins).where(*_of(tenant_id, conversation_id), _p.id == pin_id).values(removed_at=func.now())
    )
    return changed.rowcount > 0


def copy(connection: Connection, conversation_id: UUID, new: UUID, through_seq: int) -> None:
    """Copy the pins of messages up to `through_seq` to a fork."""
    columns = (_p.tenant_id, _p.seq, _p.text, _p.request_id)
    rows = select(func.gen_random_uuid(), literal(new, _p.conversation_id.type), *columns).where(
        _p.conversation_id == conversation_id, _p.seq <= through_seq, _p.removed_at.is_(None)
    )
    connection.execute(insert(pins).from_select(["id", "conversation_id", *(column.name for column in columns)], rows))


def _of(tenant_id: UUID, conversation_id: UUID) -> tuple[Any, ...]:
    return _p.tenant_id == tenant_id, _p.conversation_id == conversation_id, _p.removed_at.is_(None)
