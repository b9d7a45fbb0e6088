"""The worker's database: one engine a process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from store.engine import service_engine, transaction

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from sqlalchemy import Connection

    from store.settings import Settings
    from worker.progress import Progress


class Database:
    """Opens the transactions of tasks and sweeps: the one place of the worker where they begin and end.

    A transaction that ends counts as the task's progress.
    """

    def __init__(self, settings: Settings, name: str, progress: Progress | None = None) -> None:
        # It connects when it is first used: in a pool of processes by each of them, never before the fork.
        self.engine = service_engine(settings, name)
        self._progress = progress

    @contextmanager
    def transaction(
        self, tenant_id: UUID | None, *, one_moment: bool = False, is_progress: bool = True
    ) -> Iterator[Connection]:
        """Open a transaction on behalf of a tenant; see `store.engine.transaction`."""
        with transaction(self.engine, tenant_id, one_moment=one_moment) as connection:
            yield connection
        if is_progress:
            self.mark()

    def mark(self) -> None:
        """Note that the task of this thread got on."""
        if self._progress is not None:
            self._progress.mark()

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()
