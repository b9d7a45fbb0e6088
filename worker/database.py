"""The worker's database: one engine a process, made after any fork."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from store.engine import service_engine, transaction

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from uuid import UUID

    from sqlalchemy import Connection, Engine

    from store.settings import Settings


class Database:
    """Opens the transactions of tasks and sweeps: the one place of the worker where they begin and end."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self._name = name

    @cached_property
    def engine(self) -> Engine:
        """The engine; connections must not cross a fork, so it is made by whoever first needs it."""
        return service_engine(self._settings, self._name)

    def transaction(self, tenant_id: UUID | None, *, one_moment: bool = False) -> AbstractContextManager[Connection]:
        """Open a transaction on behalf of a tenant; see `store.engine.transaction`."""
        return transaction(self.engine, tenant_id, one_moment=one_moment)

    def close(self) -> None:
        """Close every connection."""
        if "engine" in self.__dict__:
            self.engine.dispose()
