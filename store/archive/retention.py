"""Retention of messages: conversations that are past their `message_retention_days`, found and erased.

The rule is the database function is_past_retention (migrations/sql/functions/erasure.sql). `days` is the installation's
value of the policy key everywhere here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, func, select, text

from store.archive import erasures
from store.archive.erasures import Requester
from store.tables import conversations

if TYPE_CHECKING:
    from datetime import datetime

FIRST: Final = UUID(int=0)
"""Where a walk over a tenant's conversations begins."""

_c = conversations.c
_TENANTS: Final = text("select tenant_id, has_default from tenants_with_retention(:days)")
_PAGE: Final = """
    with looked_at as (
        select c.id from conversations as c
        where c.tenant_id = :tenant_id and c.id > :after and c.erased_at is null {condition}
        order by c.id limit :limit)
    select l.id, is_past_retention(l.id, :days) as is_past from looked_at as l order by l.id
"""
_ALL: Final = text(_PAGE.format(condition=""))
_WITH_OWN: Final = text(_PAGE.format(condition="and c.policy ? 'message_retention_days'"))
_DETAILS: Final = text("""
    select c.id, count(m.seq) as messages, coalesce(sum(m.bytes), 0)::bigint as bytes,
           coalesce(max(coalesce(m.said_at, m.created_at)), c.created_at) as newest_at
    from conversations as c left join messages as m on m.conversation_id = c.id
    where c.tenant_id = :tenant_id and c.id = any (:ids) group by c.id order by c.id
""")
_TAKE_TURN: Final = text(
    "select pg_try_advisory_xact_lock(hashtextextended('palimpsest.erasures' || cast(:tenant_id as text), 0))"
)


class TenantWithRetention(NamedTuple):
    """A tenant whose conversations may be past their retention."""

    id: UUID
    has_default: bool
    """False if only conversations with a value of their own have a retention."""


class ExpiredPage(NamedTuple):
    """Conversations past their retention among those looked at, and where to go on; None at the end."""

    expired: list[UUID]
    last_seen: UUID | None


class ExpiredConversation(NamedTuple):
    """A conversation past its retention, and how much of it there is."""

    id: UUID
    messages: int
    bytes: int
    newest_at: datetime
    """When its newest message was said; of a conversation without messages, when it was created."""


def tenants_with_retention(connection: Connection, days: int) -> list[TenantWithRetention]:
    """Return the tenants of which conversations may be erased by age, across all tenants."""
    return [TenantWithRetention(*row) for row in connection.execute(_TENANTS, {"days": days})]


def expired_page(
    connection: Connection, tenant: TenantWithRetention, days: int, after: UUID, limit: int
) -> ExpiredPage:
    """Look at up to `limit` conversations of a tenant behind the id `after`."""
    given = {"tenant_id": tenant.id, "after": after, "limit": limit, "days": days}
    rows = connection.execute(_ALL if tenant.has_default else _WITH_OWN, given).all()
    return ExpiredPage([row.id for row in rows if row.is_past], rows[-1].id if len(rows) == limit else None)


def describe(connection: Connection, tenant_id: UUID, ids: list[UUID]) -> list[ExpiredConversation]:
    """Return how much there is of conversations."""
    rows = connection.execute(_DETAILS, {"tenant_id": tenant_id, "ids": ids})
    return [ExpiredConversation(*row) for row in rows]


def lock_expired(connection: Connection, tenant_id: UUID, conversation_id: UUID, days: int) -> bool:
    """Lock a conversation if it is still past its retention.

    False also while another process erases something of this tenant, or uses this conversation: a later round comes
    to it again. No message can be added before the transaction ends.
    """
    if not connection.execute(_TAKE_TURN, {"tenant_id": str(tenant_id)}).scalar_one():
        return False
    own = select(_c.id).where(_c.tenant_id == tenant_id, _c.id == conversation_id, _c.erased_at.is_(None))
    if connection.execute(own.with_for_update(skip_locked=True)).one_or_none() is None:
        return False
    # A statement after the lock: it sees what was committed before the lock was granted.
    return bool(connection.execute(select(func.is_past_retention(conversation_id, days))).scalar_one())


def erase_expired(connection: Connection, tenant_id: UUID, conversation_id: UUID, request_id: UUID) -> int:
    """Erase a conversation that `lock_expired` has locked; return how many messages it had."""
    asking = Requester(tenant_id, None, request_id)
    tombstone = erasures.erase(connection, asking, conversation_id, "retention")
    return 0 if tombstone is None else int(tombstone.message_count)
