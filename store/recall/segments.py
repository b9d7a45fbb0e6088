"""Stored segments, which cover a conversation from its beginning without gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import insert

from compaction.recall.segments import encode_segment
from store.tables import recall_segments

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from compaction.recall.segments import Segment

_s = recall_segments.c


def prepared_through(connection: Connection, conversation_id: UUID) -> int:
    """Return the last seq covered by a segment, or -1."""
    last = connection.scalar(select(func.max(_s.last_seq)).where(_s.conversation_id == conversation_id))
    return -1 if last is None else int(last)


def insert_segments(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, through: int, segments: Sequence[Segment]
) -> None:
    """Insert segments of the messages after `through`. Segments of another process stay.

    Raises the problem of an erased conversation, which has none.
    """
    rows = []
    for segment in segments:
        rows.append(
            {
                "tenant_id": tenant_id,
                "conversation_id": conversation_id,
                "first_seq": through + 1,
                "last_seq": segment.seqs[-1],
                "terms": encode_segment(segment),
            }
        )
        through = segment.seqs[-1]
    if rows:
        connection.execute(insert(recall_segments).on_conflict_do_nothing(), rows)
