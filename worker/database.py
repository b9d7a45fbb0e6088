"""The worker's database: one engine a process."""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from runtime.log import fault
from store.engine import bounded_transaction, service_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from sqlalchemy import Connection

    from runtime.settings import Settings

T = TypeVar("T")

log = structlog.get_logger()

INSIST_SECONDS: Final = 30.0
"""Seconds for which something is kept that the database cannot take; a lease in use has about as many left."""
LONGEST_PAUSE_SECONDS: Final = 1.0
PASSING: Final = (OperationalError, InterfaceError, PoolTimeoutError)
"""Faults that may pass by themselves: no connection, a restart, a deadlock, a full disk."""


class Database:
    """Opens the transactions of tasks and sweeps: the one place of the worker where they begin and end."""

    def __init__(self, settings: Settings, name: str, *, lock_timeout: str | None = None) -> None:
        # It connects when it is first used: in a pool of processes by each of them, never before the fork.
        self.engine = service_engine(settings, name)
        self._lock_timeout = lock_timeout

    @contextmanager
    def transaction(self, tenant_id: UUID | None, *, one_moment: bool = False) -> Iterator[Connection]:
        """Open a transaction on behalf of a tenant; see `store.engine.bounded_transaction`."""
        with bounded_transaction(
            self.engine, tenant_id, one_moment=one_moment, lock_timeout=self._lock_timeout
        ) as connection:
            yield connection

    @contextmanager
    def statements(self) -> Iterator[Connection]:
        """Open a connection whose every statement is a transaction of its own, for no tenant."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            yield connection

    def insist(self, tenant_id: UUID | None, write: Callable[[Connection], T]) -> T:
        """Return what `write` returns in a transaction of its own, tried again while the database is at fault.

        For what must not get lost with the first fault, because it was paid for. A connection can end between a commit
        and its answer, so `write` may meet what it wrote itself. Raises the last fault after INSIST_SECONDS.
        """
        until = time.monotonic() + INSIST_SECONDS
        pause = LONGEST_PAUSE_SECONDS / 16
        while True:
            try:
                with self.transaction(tenant_id) as connection:
                    return write(connection)
            except PASSING as error:
                if time.monotonic() + pause > until:
                    raise
                log.warning("write.again", error=fault(error))
            # At different times: workers that met in a deadlock would meet again.
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()
