"""Messages as the console lists them: their sizes and how they begin, without reading all that they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import Connection, Text, case, cast, func, literal_column, select, text, true

from store.operations.statistics import TOKENS_STORED
from store.tables import conversations, messages, said_at

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy import Select

    from store.tables import AnyRow

READ_WHOLE_BYTES: Final = 32_768
"""A longer message is listed by the beginning of its JSON text, which is not parsed."""
BEGINNING_CHARS: Final = 400

_c, _m = conversations.c, messages.c
_stored: Final = messages.alias("m")
_CONTENT: Final = cast(_m.content, Text)
_LISTED: Final = (
    _m.seq,
    _m.role,
    _m.tokens,
    _m.view_tokens,
    _m.result_chars,
    said_at(),
    _m.superseded_at,
    (_m.bytes > READ_WHOLE_BYTES).label("is_cut"),
    case((_m.bytes > READ_WHOLE_BYTES, func.left(_CONTENT, BEGINNING_CHARS)), else_=_CONTENT).label("beginning"),
)
_WEIGHED: Final = text("""
    select g.first, g.last, count(m.seq) as messages, coalesce(sum(m.tokens), 0)::bigint as tokens
    from unnest(cast(:first as integer[]), cast(:last as integer[])) as g (first, last)
        left join messages as m on m.conversation_id = :conversation and m.seq between g.first and g.last
    group by g.first, g.last
""")


class Range(NamedTuple):
    """Seqs, both inclusive."""

    first: int
    last: int


class Weight(NamedTuple):
    """Messages and the tokens of their originals."""

    messages: int
    tokens: int


def listed(connection: Connection, tenant_id: UUID, conversation_id: UUID, seqs: Sequence[int]) -> dict[int, AnyRow]:
    """Return messages by seq, as they are listed."""
    rows = connection.execute(_of(tenant_id, conversation_id).where(_m.seq.in_(seqs)))
    return {row.seq: row for row in rows}


def superseded(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> set[int]:
    """Return the seqs of superseded messages."""
    query = select(_m.seq).where(
        _m.tenant_id == tenant_id, _m.conversation_id == conversation_id, _m.superseded_at.is_not(None)
    )
    return set(connection.execute(query).scalars())


def weigh(connection: Connection, conversation_id: UUID, ranges: Sequence[Range]) -> dict[Range, Weight]:
    """Return what the originals of each range weigh."""
    values = {
        "conversation": conversation_id,
        "first": [each.first for each in ranges],
        "last": [each.last for each in ranges],
    }
    rows = connection.execute(_WEIGHED, values) if ranges else ()
    return {Range(row.first, row.last): Weight(row.messages, row.tokens) for row in rows}


def figures(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> AnyRow | None:
    """Return what is counted of a conversation and its messages."""
    stored = (
        select(
            func.count().label("messages"),
            literal_column(TOKENS_STORED).label("tokens"),
            func.max(_stored.c.created_at).label("last_message_at"),
        )
        .where(_stored.c.conversation_id == conversation_id)
        .subquery("stored")
    )
    query = select(
        _c.head_version,
        _c.covers_through,
        _c.token_ratio,
        (_c.fixed_tokens + func.round(_c.unstored_tokens / _c.token_ratio)).label("fixed_tokens"),
        _c.strip_thinking_through,
        _c.held_by_restore,
        _c.turn_count,
        _c.next_seq,
        _c.edits,
        stored,
    )
    query = query.join(stored, true()).where(_c.tenant_id == tenant_id, _c.id == conversation_id)
    return connection.execute(query).one_or_none()


def _of(tenant_id: UUID, conversation_id: UUID) -> Select[Any]:
    return select(*_LISTED).where(_m.tenant_id == tenant_id, _m.conversation_id == conversation_id)
