"""What a conversation went on from: another one of its circle, whose texts are compared with its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import Connection, Uuid, bindparam, func, select, text

from store.tables import gateway_conversations, messages

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

MOST_OPENING: Final = 16
"""Messages at the beginning of a conversation within which a client's own summary stands."""
MOST_ANSWERS: Final = 64
"""Answers that are looked at, the newest."""
MOST_BYTES: Final = 64 * 1024
"""Of one message; longer ones are no summaries."""
_g, _m = gateway_conversations.c, messages.c
_PARENTS: Final = gateway_conversations.alias()


# As gateway_begin has it: what a session went on with last; requests for a title are one each.
_LAST: Final = text("""
    select g.conversation_id from gateway_conversations as g
        cross join lateral (
            select count(*) as requests, max(p.answered_at) as last from gateway_prefixes as p
            where p.conversation_id = g.conversation_id and p.answered_at is not null) as answered
        where g.tenant_id = :tenant and g.circle = :circle and answered.requests > 1
        order by answered.last desc limit 1
""").bindparams(bindparam("tenant", type_=Uuid))


class Branch(NamedTuple):
    """What a conversation went on from, and when it began."""

    parent: UUID
    began: datetime


class EncodedMessage(NamedTuple):
    """A message in the inner form, its content as JSON."""

    seq: int
    content: str


def branch(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> Branch | None:
    """Return what a conversation went on from; None for nothing, for what is erased, and for one of another circle."""
    row = connection.execute(
        select(_g.branch_of, _g.created_at)
        .join(_PARENTS, _PARENTS.c.conversation_id == _g.branch_of)
        .where(
            _g.tenant_id == tenant_id,
            _PARENTS.c.tenant_id == tenant_id,
            _g.conversation_id == conversation_id,
            _PARENTS.c.circle == _g.circle,
        )
    ).one_or_none()
    return None if row is None else Branch(row.branch_of, row.created_at)


def branch_of_new(
    connection: Connection, tenant_id: UUID, circle: bytes, parent: UUID | None, *, in_session: bool
) -> Branch | None:
    """Return what a conversation of a circle that is not stored yet goes on from: `parent`, else the session's last."""
    if parent is None and in_session:
        parent = connection.scalar(_LAST, {"tenant": tenant_id, "circle": circle})
    began = connection.scalar(
        select(func.now()).where(_g.tenant_id == tenant_id, _g.conversation_id == parent, _g.circle == circle)
    )
    return None if parent is None or began is None else Branch(parent, began)


def opening(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> list[EncodedMessage]:
    """Return the messages that a conversation begins with."""
    return _encoded(
        connection,
        select(_m.seq, _m.content)
        .where(*_live(tenant_id, conversation_id), _m.seq < MOST_OPENING, _m.bytes <= MOST_BYTES)
        .order_by(_m.seq),
    )


def answers(connection: Connection, tenant_id: UUID, conversation_id: UUID, before: datetime) -> list[EncodedMessage]:
    """Return the newest answers of a conversation that were stored before a moment, the newest first."""
    return _encoded(
        connection,
        select(_m.seq, _m.content)
        .where(
            *_live(tenant_id, conversation_id),
            _m.role == "assistant",
            _m.created_at <= before,
            _m.bytes <= MOST_BYTES,
        )
        .order_by(_m.seq.desc())
        .limit(MOST_ANSWERS),
    )


def _live(tenant_id: UUID, conversation_id: UUID) -> tuple[Any, ...]:
    return _m.tenant_id == tenant_id, _m.conversation_id == conversation_id, _m.superseded_at.is_(None)


def _encoded(connection: Connection, statement: Any) -> list[EncodedMessage]:
    return [EncodedMessage(row.seq, row.content) for row in connection.execute(statement)]
