"""Originals for recall: messages that are neither superseded nor erased, within limits of bytes."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import ARRAY, ColumnElement, Connection, Integer, Uuid, and_, bindparam, func, select, text

from compaction.coverage import Coverage
from compaction.recall.passages import StoredText
from compaction.recall.segments import MOST_MESSAGES, WORTH_CHARS
from compaction.text.names import name_in
from store.bytes_held import MOST_READ_BYTES, PAGE_BYTES, UNASKED_BYTES, announce, page_of_sizes
from store.conversations.names import SENT_WITH_NAME
from store.tables import SAID_AT, context_blocks, conversations, messages, said_at, snapshots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from store.tables import AnyRow

_b, _c, _m, _s = context_blocks.c, conversations.c, messages.c, snapshots.c
_TEXT: Final = (_m.seq, _m.role, _m.content, said_at())
_ANY: Final = 2**62
# Plain text, because compiling it with SQLAlchemy takes as long as the query.
_CHOSEN: Final = text(f"""
    select m.seq, m.bytes, m.role, {SAID_AT} as created_at,
           case when sum(m.bytes) over () <= :unasked then m.content::text end as content,
           {SENT_WITH_NAME} as sent
    from messages as m
    where m.tenant_id = :tenant and m.conversation_id = :conversation and m.superseded_at is null
        and m.seq = any(:seqs)
    order by m.seq
""").bindparams(  # noqa: S608 - constants
    bindparam("tenant", type_=Uuid), bindparam("conversation", type_=Uuid), bindparam("seqs", type_=ARRAY(Integer))
)
_NEWEST: Final = text(f"""
    select m.seq, m.role, m.content::text as content, {SAID_AT} as created_at, {SENT_WITH_NAME} as sent
    from messages as m
    where m.tenant_id = :tenant and m.conversation_id = :conversation and m.superseded_at is null
        and m.seq between :first and :last
    order by m.seq
""").bindparams(bindparam("tenant", type_=Uuid), bindparam("conversation", type_=Uuid))  # noqa: S608 - constants


class SearchedConversation(NamedTuple):
    """A conversation, and which of its messages its context shows unchanged."""

    next_seq: int
    covers_through: int
    coverage: Coverage
    now: datetime
    policy: Mapping[str, Any] = MappingProxyType({})
    """The conversation's metadata."""
    model: str | None = None


def read_conversation(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> SearchedConversation | None:
    """Return the properties of a conversation that a search needs, or None if it does not exist."""
    row = connection.execute(
        select(_c.next_seq, _c.covers_through, _c.head_version, _c.policy, _c.model, func.now().label("now")).where(
            _c.tenant_id == tenant_id, _c.id == conversation_id
        )
    ).one_or_none()
    if row is None:
        return None
    coverage = None
    if row.head_version:
        own = (_s.tenant_id == tenant_id, _s.conversation_id == conversation_id, _s.version == row.head_version)
        coverage = connection.scalar(select(_s.coverage).where(*own))
    covered = msgspec.convert(coverage or (), Coverage)
    return SearchedConversation(row.next_seq, row.covers_through, covered, row.now, row.policy, row.model)


def read_newest(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, first: int, last: int
) -> Sequence[StoredText]:
    """Return the messages `first..last` in order: the newest MOST_READ_BYTES of them."""
    own = _live_conditions(tenant_id, conversation_id)
    before = func.sum(_m.bytes).over(order_by=_m.seq.desc()) - _m.bytes
    sizes = select(_m.seq, _m.bytes, before.label("before")).where(*own, _m.seq.between(first, last)).subquery()
    row = connection.execute(
        select(func.min(sizes.c.seq).label("first"), func.sum(sizes.c.bytes).label("bytes")).where(
            sizes.c.before < MOST_READ_BYTES
        )
    ).one()
    if row.first is None:
        return ()
    announce(row.bytes)
    values = {"tenant": tenant_id, "conversation": conversation_id, "first": row.first, "last": last}
    return [*map(stored_text, connection.execute(_NEWEST, values))]


class FollowingMessages(NamedTuple):
    """The next messages. `is_cut` is set if more follow that did not fit."""

    rows: Sequence[StoredText] = ()
    is_cut: bool = False


def read_following(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, after: int, last: int
) -> FollowingMessages:
    """Return the messages after seq `after` up to `last` in order, up to PAGE_BYTES.

    Returns none if they are too few for a segment that is worth storing. The message `after` comes first, because the
    results after it answer its calls.
    """
    own = (*_live_conditions(tenant_id, conversation_id), _m.seq.between(after, last))
    sizes = connection.execute(select(_m.seq, _m.bytes).where(*own).order_by(_m.seq)).all()
    before, new = [row for row in sizes if row.seq == after], [row for row in sizes if row.seq > after]
    page = page_of_sizes(new, len(new))
    size, is_cut = sum(row.bytes for row in page), len(page) < len(new)
    if not page or (not is_cut and len(page) < MOST_MESSAGES and size < WORTH_CHARS):
        return FollowingMessages()
    announce(size + sum(row.bytes for row in before))
    query = select(*_TEXT).where(*own, _m.seq <= page[-1].seq).order_by(_m.seq)
    return FollowingMessages([StoredText(*row) for row in connection.execute(query)], is_cut)


def read_chosen(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, seqs: Sequence[int]
) -> Sequence[StoredText]:
    """Return messages in order: those of `seqs`, which are sorted best first, up to PAGE_BYTES."""
    values = {"tenant": tenant_id, "conversation": conversation_id}
    rows = connection.execute(_CHOSEN, values | {"seqs": list(seqs), "unasked": UNASKED_BYTES}).all()
    sizes = {row.seq: row.bytes for row in rows}
    taken: list[int] = []
    total = 0
    for seq in seqs:
        if (size := sizes.get(seq)) is not None and (not taken or total + size <= PAGE_BYTES):
            taken.append(seq)
            total += size
    announce(total)
    if any(row.content is None for row in rows):
        rows = connection.execute(_CHOSEN, values | {"seqs": taken, "unasked": _ANY}).all()
    wanted = frozenset(taken)
    return [stored_text(row) for row in rows if row.seq in wanted]


def stored_text(row: AnyRow) -> StoredText:
    """Return the message of a row with `sent`, in the form of `SENT_WITH_NAME`."""
    return StoredText(row.seq, row.role, row.content, row.created_at, name_in(row.sent))


def last_seq(connection: Connection, tenant_id: UUID, conversation_id: UUID, first: int, last: int) -> int:
    """Return the seq of the newest message in `first..last`, or -1."""
    newest = select(_m.seq).where(*_live_conditions(tenant_id, conversation_id), _m.seq.between(first, last))
    seq: int | None = connection.scalar(newest.order_by(_m.seq.desc()).limit(1))
    return -1 if seq is None else seq


def read_context_block(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, seq: int, position: int
) -> AnyRow | None:
    """Return the context block at `position` of those that came with a message."""
    own = (_b.tenant_id == tenant_id, _b.conversation_id == conversation_id, _b.superseded_at.is_(None))
    place = (*own, _b.seq == seq, _b.position == position)
    announce(connection.scalar(select(func.octet_length(_b.text)).where(*place)) or 0)
    query = select(_b.seq, _b.position, _b.source, _b.text, _b.created_at).where(*place)
    return connection.execute(query).one_or_none()


def spans_of(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, ranges: Sequence[tuple[datetime, datetime]]
) -> list[tuple[int, int]]:
    """Return the ranges of seqs within ranges of time. Empty ranges are omitted."""
    if not ranges:
        return []
    said = said_at().element
    inside = [and_(said >= start, said < end) for start, end in ranges]
    # One scan of the conversation for all ranges of time.
    ends = [end.filter(each) for each in inside for end in (func.min(_m.seq), func.max(_m.seq))]
    row = connection.execute(select(*ends).where(*_live_conditions(tenant_id, conversation_id))).one()
    return [(row[at], row[at + 1]) for at in range(0, len(row), 2) if row[at] is not None]


def _live_conditions(tenant_id: UUID, conversation_id: UUID) -> tuple[ColumnElement[bool], ...]:
    return (_m.tenant_id == tenant_id, _m.conversation_id == conversation_id, _m.superseded_at.is_(None))
