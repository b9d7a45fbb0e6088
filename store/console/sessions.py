"""Who is signed in to the console. A token is 256 random bits; only its hash is kept."""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import Connection, func, insert, text, update

from store.operations.housekeeping import expire_rows
from store.tables import console_sessions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

SESSION: Final = timedelta(hours=12)
"""How long a session lasts, whatever happens in it."""
TICKET: Final = timedelta(minutes=10)
"""How long a one-time sign-in may be taken."""
_REMOVED_AT_ONCE: Final = 100
_KEPT_SECONDS: Final = 86_400.0
"""Seconds after its end that a session stays, to be told from one that never was."""

_s = console_sessions.c


class SessionRow(NamedTuple):
    """The key behind a session in force, and its tenant."""

    tenant_id: UUID
    key_id: UUID
    scopes: Sequence[str]
    policy: str


class Holder(NamedTuple):
    """The key that a ticket signs in, and its tenant."""

    tenant_id: UUID
    key_id: UUID


def begin(connection: Connection, tenant_id: UUID, key_id: UUID) -> str:
    """Begin a session of a key in force; return its token, which nobody can show again."""
    # Here, because signing in is rare, and no other part of the service need know of sessions.
    expire_rows(connection, "console_sessions", _KEPT_SECONDS, _REMOVED_AT_ONCE)
    return _insert(connection, tenant_id, key_id, SESSION, is_ticket=False)


def issue_ticket(connection: Connection, tenant_id: UUID, key_id: UUID) -> str:
    """Return a token that signs in once, within minutes."""
    return _insert(connection, tenant_id, key_id, TICKET, is_ticket=True)


def find(connection: Connection, token: str) -> SessionRow | None:
    """Return the session of a token, whatever its tenant; None where it or its key is not in force (any more)."""
    row = connection.execute(text("select * from find_console_session(:hash)"), {"hash": _hash(token)}).one_or_none()
    return SessionRow(*row) if row else None


def take_ticket(connection: Connection, token: str) -> Holder | None:
    """Use a ticket up; None where it is none, was used, or its time is over."""
    row = connection.execute(text("select * from take_console_ticket(:hash)"), {"hash": _hash(token)}).one_or_none()
    return Holder(*row) if row else None


def end(connection: Connection, tenant_id: UUID, token: str) -> None:
    """End a session."""
    connection.execute(
        update(console_sessions)
        .where(_s.tenant_id == tenant_id, _s.token_hash == _hash(token), _s.ended_at.is_(None))
        .values(ended_at=func.now())
    )


def _insert(connection: Connection, tenant_id: UUID, key_id: UUID, lasts: timedelta, *, is_ticket: bool) -> str:
    token = secrets.token_urlsafe(32)
    connection.execute(
        insert(console_sessions).values(
            token_hash=_hash(token),
            tenant_id=tenant_id,
            key_id=key_id,
            is_ticket=is_ticket,
            expires_at=func.now() + lasts,
        )
    )
    return token


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
