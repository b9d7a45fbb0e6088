"""The worker's database: one engine a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from store.engine import service_engine, transaction

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from uuid import UUID

    from sqlalchemy import Connection

    from store.settings import Settings


class Database:
    """Opens the transactions of tasks and sweeps: the one place of the worker where they begin and end."""

    def __init__(self, settings: Settings, name: str) -> None:
        # It connects when it is first used: in a pool of processes by each of them, never before the fork.
        self.engine = service_engine(settings, name)

    def transaction(self, tenant_id: UUID | None, *, one_moment: bool = False) -> AbstractContextManager[Connection]:
        """Open a transaction on behalf of a tenant; see `store.engine.transaction`."""
        return transaction(self.engine, tenant_id, one_moment=one_moment)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()
