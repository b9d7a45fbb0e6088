"""Reads the material of a word search in one query: stored segments, and the messages without any.

Separate queries took longer than the search itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import Connection, bindparam, text
from sqlalchemy.types import Uuid

from compaction.coverage import Coverage
from compaction.recall.passages import StoredText
from store.bytes_held import MOST_READ_BYTES, UNASKED_BYTES, announce
from store.recall.originals import SearchedConversation
from store.tables import SAID_AT, conversations, snapshots

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from store.tables import AnyRow


class SearchMaterial(NamedTuple):
    """The searchable material of a conversation."""

    place: SearchedConversation
    through: int
    """The last seq covered by a segment, or -1."""
    terms: Sequence[bytes]
    """The segments with requested messages, in order."""
    superseded: Sequence[int]
    """Messages in segments that were superseded."""
    rows: Sequence[StoredText]
    """Messages without a segment, after the one before them for its calls: the newest MOST_READ_BYTES."""
    is_whole: bool
    """Whether no message is missing between the segments and the rows."""


def read_material(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, first: int, last: int
) -> SearchMaterial | None:
    """Return the material to search the messages `first..last`, or None if the conversation does not exist."""
    values: dict[str, Any] = {
        "tenant": tenant_id,
        "conversation": conversation_id,
        "first": first,
        "last": last,
        "bytes": MOST_READ_BYTES,
    }
    row = _read_row(connection, values, UNASKED_BYTES)
    if row is None:
        return None
    announce(row.bytes)
    if row.bytes > UNASKED_BYTES and (row := _read_row(connection, values, _ANY)) is None:
        return None
    coverage = msgspec.convert(row.coverage or (), Coverage)
    place = SearchedConversation(row.next_seq, row.covers_through, coverage, row.now, row.policy, row.model)
    rows = [*map(StoredText, row.seqs or (), row.roles or (), row.contents or (), row.times or ())]
    return SearchMaterial(place, row.through, row.terms or (), row.superseded or (), rows, row.is_whole)


def _read_row(connection: Connection, values: dict[str, Any], unasked: int) -> AnyRow | None:
    """Return the row, with texts and segments if they have at most `unasked` bytes."""
    return connection.execute(_MATERIAL, values | {"unasked": unasked}).one_or_none()


_ANY: Final = 2**62
_MATERIAL: Final = (
    text(f"""
    with own as (
        select c.next_seq, c.covers_through, c.head_version, c.policy, c.model, coalesce(
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
    ), sized as (
        select o.next_seq, o.covers_through, o.head_version, o.policy, o.model, o.through, t.first_text,
               (t.bytes + s.bytes)::bigint as bytes, :first <= o.through + 1 and t.is_whole as is_whole
        from own as o cross join summed as t cross join segments as s
    )
    select z.next_seq, z.covers_through, z.policy, z.model, now() as now, z.through, z.bytes, z.is_whole,
           (select h.coverage from snapshots as h where h.tenant_id = :tenant and h.conversation_id = :conversation
                and h.version = z.head_version) as coverage,
           prepared.terms, replaced.superseded, rows.seqs, rows.roles, rows.contents, rows.times
    from sized as z left join lateral (
        select array_agg(s.terms order by s.first_seq) as terms from recall_segments as s
        where s.tenant_id = :tenant and s.conversation_id = :conversation
            and s.last_seq >= :first and s.first_seq <= :last
    ) as prepared on z.bytes <= :unasked left join lateral (
        select array_agg(m.seq) as superseded from messages as m
        where m.tenant_id = :tenant and m.conversation_id = :conversation and m.seq <= z.through
            and m.superseded_at is not null
    ) as replaced on z.bytes <= :unasked left join lateral (
        select array_agg(m.seq order by m.seq) as seqs, array_agg(m.role order by m.seq) as roles,
               array_agg(m.content::text order by m.seq) as contents, array_agg({SAID_AT} order by m.seq) as times
        from messages as m
        where m.tenant_id = :tenant and m.conversation_id = :conversation and m.superseded_at is null
            and m.seq between z.first_text and :last
    ) as rows on z.bytes <= :unasked
    """)  # noqa: S608 - constants
    .bindparams(bindparam("tenant", type_=Uuid), bindparam("conversation", type_=Uuid))
    .columns(coverage=snapshots.c.coverage.type, policy=conversations.c.policy.type)
)
