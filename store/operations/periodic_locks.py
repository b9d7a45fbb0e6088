"""Locks of periodic tasks: several beats may send the same one, and one process at a time carries it out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import text

if TYPE_CHECKING:
    from sqlalchemy import Connection

_TRY_LOCK: Final = text("select pg_try_advisory_xact_lock(hashtextextended('palimpsest.' || :name, 0))")


def try_lock(connection: Connection, name: str) -> bool:
    """Lock a periodic task until the transaction ends; return False if another process has it."""
    return bool(connection.scalar(_TRY_LOCK, {"name": name}))
