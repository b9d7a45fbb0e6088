"""What a search by words reads of one conversation: what is prepared, and the messages that are not, in few questions.

A search that asked for each of it by itself took longer to ask than to search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from sqlalchemy import Connection, bindparam, select, text
from sqlalchemy.types import Uuid

from compaction.coverage import Coverage
from store.bytes_held import MOST_READ_BYTES, announce
from store.recall import originals
from store.recall.originals import Searched
from store.tables import messages, recall_segments, snapshots

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from store.tables import AnyRow

_m, _s = messages.c, recall_segments.c


class SearchMaterial(NamedTuple):
    """A conversation as it is searched."""

    place: Searched
    through: int
    """The last seq that any segment stands for, -1 for none."""
    terms: list[bytes]
    """The segments that have any of the messages asked for, in order."""
    superseded: list[int]
    """Messages with segments that were replaced, since then or before."""
    rows: Sequence[AnyRow]
    """Messages that are not prepared, and the one before them for its calls: the newest MOST_READ_BYTES."""
    is_whole: bool
    """Nothing is missing between what is prepared and the rows."""


def material(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, first: int, last: int
) -> SearchMaterial | None:
    """Return what a search of the messages `first..last` reads, None where there is no such conversation."""
    values = {
        "tenant": tenant_id,
        "conversation": conversation_id,
        "first": first,
        "last": last,
        "bytes": MOST_READ_BYTES,
    }
    row = connection.execute(_SIZES, values).one_or_none()
    if row is None:
        return None
    announce(row.bytes)
    terms: Sequence[bytes] = ()
    superseded: Sequence[int] = ()
    rows: Sequence[AnyRow] = ()
    if row.through >= 0:
        own = (_s.tenant_id == tenant_id, _s.conversation_id == conversation_id)
        asked = select(_s.terms).where(*own, _s.last_seq >= first, _s.first_seq <= last).order_by(_s.first_seq)
        terms = connection.scalars(asked).all()
        superseded = connection.scalars(
            select(_m.seq).where(
                _m.tenant_id == tenant_id,
                _m.conversation_id == conversation_id,
                _m.seq <= row.through,
                _m.superseded_at.is_not(None),
            )
        ).all()
    if row.first_text is not None:
        rows = originals.between(connection, tenant_id, conversation_id, row.first_text, last)
    place = Searched(row.next_seq, row.covers_through, msgspec.convert(row.coverage or (), Coverage), row.now)
    return SearchMaterial(place, row.through, list(terms), list(superseded), rows, row.is_whole)


_SIZES: Final = (
    text("""
    with own as (
        select c.next_seq, c.covers_through, c.head_version, coalesce(
                   (select max(s.last_seq) from recall_segments as s where s.conversation_id = c.id), -1) as through
        from conversations as c where c.tenant_id = :tenant and c.id = :conversation
    ), texts as (
        select m.seq, m.bytes, m.seq > o.through as is_new,
               sum(m.bytes) over (order by m.seq desc) - m.bytes < :bytes as is_read
        from own as o join messages as m on m.tenant_id = :tenant and m.conversation_id = :conversation
            and m.seq between greatest(:first, o.through) and :last
        where m.superseded_at is null
    ), summed as (
        select min(t.seq) filter (where t.is_read) as first_text,
               coalesce(sum(t.bytes) filter (where t.is_read), 0) as bytes,
               coalesce(bool_and(t.is_read) filter (where t.is_new), false) as is_whole
        from texts as t
    ), segments as (
        select coalesce(sum(octet_length(s.terms)), 0) as bytes from recall_segments as s
        where s.tenant_id = :tenant and s.conversation_id = :conversation
            and s.last_seq >= :first and s.first_seq <= :last
    )
    select o.next_seq, o.covers_through, now() as now, o.through, t.first_text, (t.bytes + s.bytes)::bigint as bytes,
           :first <= o.through + 1 and t.is_whole as is_whole,
           (select h.coverage from snapshots as h where h.tenant_id = :tenant and h.conversation_id = :conversation
                and h.version = o.head_version) as coverage
    from own as o cross join summed as t cross join segments as s
    """)
    .bindparams(bindparam("tenant", type_=Uuid), bindparam("conversation", type_=Uuid))
    .columns(coverage=snapshots.c.coverage.type)
)
