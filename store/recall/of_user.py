"""A user's conversations for recall: the newest, within limits of conversations, messages and bytes."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import Connection, and_, bindparam, func, select, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import Integer, Uuid

from compaction.coverage import Coverage
from store.bytes_held import MOST_READ_BYTES, PAGE_BYTES, announce
from store.conversations.names import SENT_WITH_NAME
from store.recall.originals import SearchedConversation, stored_text
from store.tables import SAID_AT, conversations, snapshots

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from compaction.recall.passages import StoredText

MOST_CONVERSATIONS: Final = 200
"""Newest conversations of a user that are searched."""
MOST_MESSAGES: Final = 20_000
"""Messages that are searched, those of the newest conversations first. docs/recall.md has the measurements."""

_c, _s = conversations.c, snapshots.c


class Stretch(NamedTuple):
    """The searched part of one conversation."""

    conversation_id: UUID
    first: int
    through: int
    """The last seq covered by a segment, or -1."""
    first_segment: int | None
    first_text: int | None
    """The first message to read: without a segment, or the last one with a segment, for its calls."""
    is_whole: bool
    """Whether no message is missing between the segments and the read messages."""


class Stretches(NamedTuple):
    """A user's conversations, the oldest first. `is_cut` is set if some are beyond the limits."""

    items: list[Stretch]
    is_cut: bool


class UserMaterial(NamedTuple):
    """The material read, by conversation."""

    terms: dict[UUID, list[bytes]]
    superseded: dict[UUID, list[int]]
    rows: dict[UUID, list[StoredText]]
    """Messages without a segment."""


def is_owner(connection: Connection, tenant_id: UUID, user_ref: str, conversation_id: UUID) -> bool:
    """Return whether a conversation belongs to the user."""
    own = select(_c.id).where(_c.tenant_id == tenant_id, _c.id == conversation_id, _c.user_ref == user_ref)
    return connection.execute(own).first() is not None


def find_stretches(connection: Connection, tenant_id: UUID, user_ref: str, *, prepared: bool) -> Stretches:
    """Return the searched parts of a user's conversations. Without `prepared`, segments are not used."""
    rows = connection.execute(
        _STRETCHES,
        {
            "tenant": tenant_id,
            "user_ref": user_ref,
            "prepared": prepared,
            "conversations": MOST_CONVERSATIONS,
            "messages": MOST_MESSAGES,
            "bytes": MOST_READ_BYTES,
        },
    ).all()
    announce(sum(row.bytes for row in rows))
    items = [
        Stretch(row.id, row.first, row.through, row.first_segment, row.first_text, row.is_whole)
        for row in reversed(rows)
    ]
    return Stretches(items, any(row.is_cut for row in rows))


def read_material(connection: Connection, tenant_id: UUID, wanted: Sequence[Stretch]) -> UserMaterial:
    """Return the segments of stretches, and the messages without one."""
    by_segments = [each for each in wanted if each.first_segment is not None]
    by_texts = [each for each in wanted if each.first_text is not None]
    terms: dict[UUID, list[bytes]] = defaultdict(list)
    superseded: dict[UUID, list[int]] = defaultdict(list)
    rows: dict[UUID, list[StoredText]] = defaultdict(list)
    own = [each.conversation_id for each in by_segments]
    values = {"tenant": tenant_id, "ids": own, "seqs": [each.first_segment for each in by_segments]}
    for row in connection.execute(_TERMS, values):
        terms[row.conversation_id].append(row.terms)
    for row in connection.execute(_SUPERSEDED, values | {"last": [each.through for each in by_segments]}):
        superseded[row.conversation_id].append(row.seq)
    values = {
        "tenant": tenant_id,
        "ids": [each.conversation_id for each in by_texts],
        "seqs": [each.first_text for each in by_texts],
    }
    for row in connection.execute(_TEXTS, values):
        rows[row.conversation_id].append(stored_text(row))
    return UserMaterial(terms, superseded, rows)


def spans_of(
    connection: Connection, tenant_id: UUID, wanted: Sequence[Stretch], ranges: Sequence[tuple[datetime, datetime]]
) -> list[tuple[UUID, int, int]]:
    """Return the ranges of seqs within ranges of time, by conversation."""
    values = {
        "tenant": tenant_id,
        "ids": [each.conversation_id for each in wanted],
        "seqs": [each.first for each in wanted],
    }
    return [
        (row.conversation_id, row.first, row.last)
        for start, end in ranges
        for row in connection.execute(_SPANS, values | {"start": start, "end": end})
    ]


def read_chosen(
    connection: Connection, tenant_id: UUID, wanted: Sequence[tuple[UUID, int]]
) -> dict[UUID, list[StoredText]]:
    """Return messages by conversation and seq, in order: the first ones, up to PAGE_BYTES."""
    values = {"tenant": tenant_id, "ids": [each[0] for each in wanted], "seqs": [each[1] for each in wanted]}
    taken: list[tuple[UUID, int]] = []
    total = 0
    for row in connection.execute(_SIZES, values):
        if not taken or total + row.bytes <= PAGE_BYTES:
            taken.append((row.conversation_id, row.seq))
            total += row.bytes
    announce(total)
    by_conversation: dict[UUID, list[StoredText]] = defaultdict(list)
    values = {"tenant": tenant_id, "ids": [each[0] for each in taken], "seqs": [each[1] for each in taken]}
    for row in connection.execute(_CHOSEN, values):
        by_conversation[row.conversation_id].append(stored_text(row))
    return by_conversation


def read_contexts(connection: Connection, tenant_id: UUID, of: Sequence[UUID]) -> dict[UUID, SearchedConversation]:
    """Return which messages the contexts of conversations show unchanged."""
    head = and_(_s.tenant_id == _c.tenant_id, _s.conversation_id == _c.id, _s.version == _c.head_version)
    rows = connection.execute(
        select(_c.id, _c.next_seq, _c.covers_through, _c.policy, _c.model, _s.coverage, func.now().label("now"))
        .outerjoin(snapshots, head)
        .where(_c.tenant_id == tenant_id, _c.id.in_(of))
    )
    return {
        row.id: SearchedConversation(
            row.next_seq,
            row.covers_through,
            msgspec.convert(row.coverage or (), Coverage),
            row.now,
            row.policy,
            row.model,
        )
        for row in rows
    }


def database_now(connection: Connection) -> datetime:
    """Return the database's current time."""
    return connection.execute(select(func.now())).scalar_one()


def _bind_types(statement: str, *integers: str) -> Any:
    """Return a statement for the conversations `ids`, with parallel arrays of seqs."""
    arrays = [bindparam(name, type_=ARRAY(Integer)) for name in integers]
    return text(statement).bindparams(bindparam("tenant", type_=Uuid), bindparam("ids", type_=ARRAY(Uuid)), *arrays)


# Sizes are bounded before anything is read: the number of conversations, and the start of the searched part of each.
# Bytes are summed from the newest message of the newest conversation, with and without segments.
_STRETCHES: Final = text("""
    with own as (
        select c.id, c.next_seq, row_number() over newer as place,
               coalesce(sum(c.next_seq) over (newer rows between unbounded preceding and 1 preceding), 0) as before
        from (
            select c.id, c.next_seq from conversations as c
            where c.tenant_id = :tenant and c.user_ref = :user_ref
            order by c.id desc limit :conversations + 1
        ) as c
        window newer as (order by c.id desc)
    ), searched as (
        select o.id, o.place, greatest(0, o.next_seq + o.before - :messages)::integer as first,
               case when :prepared then coalesce(
                   (select max(s.last_seq) from recall_segments as s where s.conversation_id = o.id), -1) else -1
               end as through
        from own as o
        where o.place <= :conversations and o.before < :messages and o.next_seq > 0
    ), items as (
        select h.id, h.place, s.first_seq as seq, octet_length(s.terms)::bigint as bytes, true as is_segment
        from searched as h join recall_segments as s
            on s.tenant_id = :tenant and s.conversation_id = h.id and s.last_seq >= h.first
        where :prepared
        union all
        select h.id, h.place, m.seq, m.bytes, false
        from searched as h join messages as m
            on m.tenant_id = :tenant and m.conversation_id = h.id and m.seq >= greatest(h.first, h.through)
        where m.superseded_at is null
    ), summed as (
        select i.*, sum(i.bytes) over (order by i.place, i.seq desc, i.is_segment rows unbounded preceding) - i.bytes
               < :bytes as is_read
        from items as i
    )
    select h.id, h.first, h.through,
           min(i.seq) filter (where i.is_read and i.is_segment) as first_segment,
           min(i.seq) filter (where i.is_read and not i.is_segment) as first_text,
           coalesce(sum(i.bytes) filter (where i.is_read), 0)::bigint as bytes,
           h.first <= h.through + 1 and coalesce(bool_and(i.is_read) filter (where not i.is_segment), true) as is_whole,
           h.first > 0 or coalesce(not bool_and(i.is_read), false)
               or (select count(*) from own as o where o.next_seq > 0) > (select count(*) from searched) as is_cut
    from searched as h left join summed as i on i.place = h.place
    group by h.id, h.place, h.first, h.through
    order by h.place
""").bindparams(bindparam("tenant", type_=Uuid))
_TERMS: Final = _bind_types(
    """
    select s.conversation_id, s.terms
    from unnest(:ids, :seqs) as w (id, seq) join recall_segments as s
        on s.tenant_id = :tenant and s.conversation_id = w.id and s.first_seq >= w.seq
    order by s.conversation_id, s.first_seq
    """,
    "seqs",
)
_SUPERSEDED: Final = _bind_types(
    """
    select m.conversation_id, m.seq
    from unnest(:ids, :seqs, :last) as w (id, seq, last) join messages as m
        on m.tenant_id = :tenant and m.conversation_id = w.id and m.seq between w.seq and w.last
    where m.superseded_at is not null
    """,
    "seqs",
    "last",
)
_TEXTS: Final = _bind_types(
    f"""
    select m.conversation_id, m.seq, m.role, m.content::text as content,
        {SAID_AT} as created_at, {SENT_WITH_NAME} as sent
    from unnest(:ids, :seqs) as w (id, seq) join messages as m
        on m.tenant_id = :tenant and m.conversation_id = w.id and m.seq >= w.seq
    where m.superseded_at is null
    order by m.conversation_id, m.seq
    """,  # noqa: S608 - constants
    "seqs",
)
_SPANS: Final = _bind_types(
    f"""
    select m.conversation_id, min(m.seq) as first, max(m.seq) as last
    from unnest(:ids, :seqs) as w (id, seq) join messages as m
        on m.tenant_id = :tenant and m.conversation_id = w.id and m.seq >= w.seq
    where m.superseded_at is null and {SAID_AT} >= :start and {SAID_AT} < :end
    group by m.conversation_id
    """,  # noqa: S608 - constants
    "seqs",
)
_SIZES: Final = _bind_types(
    """
    select m.conversation_id, m.seq, m.bytes
    from unnest(:ids, :seqs) with ordinality as w (id, seq, place) join messages as m
        on m.tenant_id = :tenant and m.conversation_id = w.id and m.seq = w.seq
    where m.superseded_at is null
    order by w.place
    """,
    "seqs",
)
_CHOSEN: Final = _bind_types(
    f"""
    select m.conversation_id, m.seq, m.role, m.content::text as content,
        {SAID_AT} as created_at, {SENT_WITH_NAME} as sent
    from unnest(:ids, :seqs) as w (id, seq) join messages as m
        on m.tenant_id = :tenant and m.conversation_id = w.id and m.seq = w.seq
    where m.superseded_at is null
    order by m.conversation_id, m.seq
    """,  # noqa: S608 - constants
    "seqs",
)
