"""Segments as they are stored: without gaps from a conversation's beginning on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import insert

from compaction.recall.segments import Segment, encoded
from store.bytes_held import announce
from store.tables import messages, recall_segments

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

_m, _s = messages.c, recall_segments.c


class StoredSegments(NamedTuple):
    """What is stored of a conversation."""

    terms: list[bytes]
    """Of the segments that were asked for."""
    through: int
    """The last seq that any segment stands for, -1 for none."""
    superseded: list[int]
    """Messages that were replaced, since then or before."""


def prepared_through(connection: Connection, conversation_id: UUID) -> int:
    """Return the last seq that a segment stands for, -1 for none."""
    last = connection.scalar(select(func.max(_s.last_seq)).where(_s.conversation_id == conversation_id))
    return -1 if last is None else int(last)


def prepared(connection: Connection, tenant_id: UUID, conversation_id: UUID, first: int, last: int) -> StoredSegments:
    """Return the segments that have any of the messages `first..last`."""
    through = prepared_through(connection, conversation_id)
    if through < 0:
        return StoredSegments([], through, [])
    own = (_s.tenant_id == tenant_id, _s.conversation_id == conversation_id, _s.last_seq >= first, _s.first_seq <= last)
    announce(connection.scalar(select(func.coalesce(func.sum(func.length(_s.terms)), 0)).where(*own)) or 0)
    terms = connection.scalars(select(_s.terms).where(*own).order_by(_s.first_seq)).all()
    replaced = select(_m.seq).where(
        _m.tenant_id == tenant_id,
        _m.conversation_id == conversation_id,
        _m.seq <= through,
        _m.superseded_at.is_not(None),
    )
    return StoredSegments(list(terms), through, list(connection.scalars(replaced)))


def store(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, through: int, found: Sequence[Segment]
) -> None:
    """Store segments of the messages after `through`; those that somebody else has stored meanwhile stay.

    Raises the problem of an erased conversation, which has none.
    """
    rows = []
    for segment in found:
        rows.append(
            {
                "tenant_id": tenant_id,
                "conversation_id": conversation_id,
                "first_seq": through + 1,
                "last_seq": segment.seqs[-1],
                "terms": encoded(segment),
            }
        )
        through = segment.seqs[-1]
    if rows:
        connection.execute(insert(recall_segments).on_conflict_do_nothing(), rows)
