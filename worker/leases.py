"""Keeping a lease alive while work goes on that the database cannot see."""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING, Self

import structlog
from sqlalchemy.exc import SQLAlchemyError

from store import runs

if TYPE_CHECKING:
    from types import TracebackType

    from store.runs import Lease
    from worker.database import Database

log = structlog.get_logger()


class Heartbeat:
    """Extends a lease three times in its lifetime, until left. A lost lease is found out at the commit."""

    def __init__(self, database: Database, lease: Lease, lease_seconds: float) -> None:
        self._database = database
        self._lease = lease
        self._seconds = lease_seconds
        self._over = Event()
        self._thread = Thread(target=self._beat, name=f"heartbeat-{lease.run_id}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._over.wait(self._seconds / 3):
            try:
                with self._database.transaction(self._lease.tenant_id) as connection:
                    held = runs.heartbeat(connection, self._lease, self._seconds)
            except SQLAlchemyError as error:
                # The database may be back before the lease runs out; the next beat tries again.
                log.warning("heartbeat.failed", error=type(error).__name__)
                continue
            if not held:
                return
