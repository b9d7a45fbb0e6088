"""The ledger of rules: what people want to stay in the context word for word, and what they said to that effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, func, insert, literal, or_, select, text, update

from compaction.pins.pinned import IN_LEDGER, Pin
from runtime import ids
from store.conversations.names import SPEAKER, speaker_in
from store.tables import messages, pins

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from uuid import UUID

    from store.tables import AnyRow

_p, _m = pins.c, messages.c
_SHOWN: Final = (_p.id, _p.seq, _p.text, _p.created_at)
_LIVE: Final = (_m.conversation_id == _p.conversation_id) & (_m.seq == _p.seq) & _m.superseded_at.is_(None)


def add(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, seq: int, text: str, request_id: UUID
) -> AnyRow:
    """Pin a text of message `seq`; return the pin, the one that is there if the same was pinned before."""
    own = (*_of(tenant_id, conversation_id), _p.source == "pinned", _p.seq == seq, _p.text == text)
    # There are several where one that was withdrawn was put in force again beside the next.
    same = connection.execute(select(*_SHOWN).where(*own).order_by(_p.id).limit(1)).one_or_none()
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
    pinned = select(*_SHOWN).join(messages, _LIVE).where(*_of(tenant_id, conversation_id), _p.source == "pinned")
    return connection.execute(pinned.order_by(_p.id)).all()


def in_force(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, *, through: int | None = None
) -> tuple[Pin, ...]:
    """Return what has to stay word for word, pinned or detected, as it was entered; of messages to `through`."""
    query = select(_p.id, _p.seq, _p.text, _p.source, *SPEAKER).join(messages, _LIVE)
    query = query.where(*_of(tenant_id, conversation_id))
    if through is not None:
        query = query.where(_p.seq <= through)
    rows = connection.execute(query.where(_p.source.in_(IN_LEDGER)).order_by(_p.id))
    return tuple(Pin(str(row.id), row.seq, row.text, IN_LEDGER[row.source], speaker_in(row)) for row in rows)


def withdrawn(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> frozenset[tuple[int, str]]:
    """Return seqs and texts of the detected rules that were withdrawn: they are not to be detected again."""
    rows = connection.execute(
        select(_p.seq, _p.text).where(
            _p.tenant_id == tenant_id,
            _p.conversation_id == conversation_id,
            _p.source == "detected",
            _p.removed_at.is_not(None),
        )
    )
    return frozenset((row.seq, row.text) for row in rows)


def ledger(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> Sequence[AnyRow]:
    """Return every entry there ever was, in the order of messages, with what there is to know of its message."""
    return connection.execute(
        select(
            *_SHOWN,
            _p.source,
            _p.request_id,
            func.coalesce(_p.removed_at, _m.superseded_at).label("withdrawn_at"),
            _m.superseded_at,
            *SPEAKER,
        )
        .join(messages, (_m.conversation_id == _p.conversation_id) & (_m.seq == _p.seq))
        .where(_p.tenant_id == tenant_id, _p.conversation_id == conversation_id)
        .order_by(_p.seq, _p.id)
    ).all()


def enter(connection: Connection, tenant_id: UUID, conversation_id: UUID, found: Iterable[Pin]) -> None:
    """Enter standing instructions that a compaction found in messages of before there was a ledger, or in long ones."""
    for rule in found:
        columns = ["id", "tenant_id", "conversation_id", "seq", "text", "source", "speaker", "created_at"]
        literals = (literal(ids.new_id(), _p.id.type), literal(tenant_id, _p.id.type), _m.conversation_id, _m.seq)
        said = select(*literals, literal(rule.text), literal("detected"), literal(rule.speaker), _m.created_at).where(
            _m.conversation_id == conversation_id, _m.seq == rule.seq
        )
        connection.execute(insert(pins).from_select(columns, said))
    # Entries of before, which were never listed, are so from now on.
    connection.execute(text("select list_rules(:conversation)"), {"conversation": conversation_id})


def settle(connection: Connection, tenant_id: UUID, conversation_id: UUID, entries: Collection[UUID]) -> int:
    """Take entries off; return how many were in force."""
    changed = connection.execute(
        update(pins).where(*_of(tenant_id, conversation_id), _p.id.in_(entries)).values(removed_at=func.now())
    )
    return changed.rowcount


def reinstate(connection: Connection, tenant_id: UUID, conversation_id: UUID, entry: UUID) -> None:
    """Put an entry in force again."""
    own = (_p.tenant_id == tenant_id, _p.conversation_id == conversation_id, _p.id == entry)
    connection.execute(update(pins).where(*own).values(removed_at=None))


def remove(connection: Connection, tenant_id: UUID, conversation_id: UUID, pin_id: UUID) -> bool:
    """Take a pin off; False if there is none of that id."""
    changed = connection.execute(
        update(pins)
        .where(*_of(tenant_id, conversation_id), _p.source == "pinned", _p.id == pin_id)
        .values(removed_at=func.now())
    )
    return changed.rowcount > 0


def copy(connection: Connection, conversation_id: UUID, new: UUID, through_seq: int) -> None:
    """Copy the entries of messages to `through_seq` to a fork: those in force, and rules not to be detected again."""
    rows = connection.execute(
        select(pins)
        .where(
            _p.conversation_id == conversation_id,
            _p.seq <= through_seq,
            or_(_p.removed_at.is_(None), _p.source == "detected"),
        )
        .order_by(_p.id)
    ).mappings()
    copied = [{**row, "conversation_id": new} for row in rows]
    # They sort as they did.
    renewed = ids.renewed(row["id"] for row in copied)
    if copied:
        connection.execute(insert(pins), [{**row, "id": renewed[row["id"]]} for row in copied])


def _of(tenant_id: UUID, conversation_id: UUID) -> tuple[Any, ...]:
    return _p.tenant_id == tenant_id, _p.conversation_id == conversation_id, _p.removed_at.is_(None)
