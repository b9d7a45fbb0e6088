"""Removal of expired rows across tenants, in bounded batches; see migrations/sql/functions/housekeeping.sql."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from sqlalchemy import text

if TYPE_CHECKING:
    from sqlalchemy import Connection

FIRST: Final = UUID(int=0)
"""Where a walk over all rows begins."""


class Pass(NamedTuple):
    """What a batch of a walk came to: where to go on (None at the end), and how many rows it removed."""

    last_seen: UUID | None
    removed: int


def expire_idempotency_keys(connection: Connection, seconds: float, limit: int) -> int:
    """Remove keys older than `seconds`; return how many. A turn sent again after that is a new one."""
    return expire_rows(connection, "idempotency_keys", seconds, limit)


def expire_rows(connection: Connection, table: str, seconds: float, limit: int) -> int:
    """Remove the oldest rows of a table, `limit` at most, that are older than `seconds`; return how many."""
    statement = text("select expire_rows(:table, :seconds, :limit)")
    removed: int = connection.execute(statement, {"table": table, "seconds": seconds, "limit": limit}).scalar_one()
    return removed


def expire_runs(connection: Connection, after: UUID, seconds: float, limit: int) -> Pass:
    """Remove runs that ended more than `seconds` ago, and their steps, but those that a snapshot or delivery names."""
    return _walk(connection, "expire_runs", after, seconds, limit)


def expire_snapshots(connection: Connection, after: UUID, seconds: float, limit: int) -> Pass:
    """Remove snapshots older than `seconds` that are not on the way to their conversation's head."""
    return _walk(connection, "expire_snapshots", after, seconds, limit)


def _walk(connection: Connection, function: str, after: UUID, seconds: float, limit: int) -> Pass:
    statement = text(f"select * from {function}(:after, :seconds, :limit)")  # noqa: S608 - a name from above
    return Pass(*connection.execute(statement, {"after": after, "seconds": seconds, "limit": limit}).one())
