"""Erasure: everything that was said in a conversation gone for good, and what is left to tell of it.

The database function erase_conversation (migrations/sql/functions/erasure.sql) does the work; nothing else can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from sqlalchemy import Connection, func, select, update

from compaction.steps.runs import RunReason
from runtime import ids
from store.runs import ended as ended_runs
from store.tables import conversations, erasures, runs, waiting_summaries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from store.operations.operator_actions import Operator
    from store.tables import AnyRow

AskedFor = Literal["conversation", "user", "retention"]

OF_USER_AT_ONCE: Final = 20
"""Conversations of a user that one transaction erases: locks are held for that long."""
GONE: Final = "PL404"
"""SQLSTATE with which the database refuses what would be written into an erased conversation."""


class Requester(NamedTuple):
    """Who has something erased: an operator, or housekeeping, which has no key."""

    tenant_id: UUID
    key_id: UUID | None
    request_id: UUID


_c, _e, _r, _w = conversations.c, erasures.c, runs.c, waiting_summaries.c


def erase(
    connection: Connection, asking: Operator | Requester, conversation_id: UUID, asked_for: AskedFor = "conversation"
) -> AnyRow | None:
    """Erase a conversation, unless that has been done; return its tombstone, None for no such conversation."""
    connection.execute(
        select(func.erase_conversation(ids.new_id(), conversation_id, asked_for, asking.key_id, asking.request_id))
    )
    tombstone = connection.execute(
        select(erasures).where(_e.tenant_id == asking.tenant_id, _e.conversation_id == conversation_id)
    ).one_or_none()
    if tombstone is not None and tombstone.request_id == asking.request_id:
        _note_ended_runs(connection, tombstone)
        # There is nothing left to be summarized on another day.
        connection.execute(
            update(waiting_summaries)
            .where(_w.tenant_id == asking.tenant_id, _w.conversation_id == conversation_id, _w.done_at.is_(None))
            .values(done_at=func.now())
        )
    return tombstone


def _note_ended_runs(connection: Connection, tombstone: AnyRow) -> None:
    """Note the runs that an erasure has ended: a conversation has one at most, and each of its blocks."""
    ended = select(_r.state, _r.reason).where(
        _r.tenant_id == tombstone.tenant_id,
        _r.conversation_id == tombstone.conversation_id,
        _r.reason == RunReason.ERASED,
        _r.finished_at == tombstone.erased_at,
    )
    for row in connection.execute(ended):
        ended_runs.note(row.state, row.reason)


def erase_of_user(connection: Connection, asking: Operator, user_ref: str) -> int:
    """Erase some of a user's conversations; return how many were found, 0 once there are none."""
    identifiers = connection.execute(
        select(_c.id)
        .where(_c.tenant_id == asking.tenant_id, _c.user_ref == user_ref)
        .order_by(_c.id)
        .limit(OF_USER_AT_ONCE)
    )
    return sum(erase(connection, asking, identifier, "user") is not None for identifier in identifiers.scalars().all())


def page(
    connection: Connection,
    tenant_id: UUID,
    *,
    limit: int,
    after: UUID | None = None,
    before: UUID | None = None,
    conversation_id: UUID | None = None,
) -> Sequence[AnyRow]:
    """Return up to `limit` tombstones, newest first; `after` continues to older ones, `before` to newer."""
    query = select(erasures).where(_e.tenant_id == tenant_id)
    if conversation_id is not None:
        query = query.where(_e.conversation_id == conversation_id)
    if before is not None:
        newer = query.where(_e.id > before).order_by(_e.id).limit(limit)
        return list(reversed(connection.execute(newer).all()))
    if after is not None:
        query = query.where(_e.id < after)
    return connection.execute(query.order_by(_e.id.desc()).limit(limit)).all()
