"""Heartbeat: a row of `processes` that is written every few seconds while a process lives."""

from __future__ import annotations

import os
import socket
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy.exc import SQLAlchemyError

from runtime import ids
from runtime.log import fault
from runtime.release import VERSION
from store.operations import processes
from store.operations.processes import Process
from worker.database import Database
from worker.process.losses import Losses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from runtime.settings import Settings
    from store.operations.processes import Activity, Kind

log = structlog.get_logger()

JOIN_SECONDS: Final = 5.0
"""Seconds that the end of a process waits for its heartbeat to remove its row."""


class WorkerHeartbeat:
    """A thread that writes the process's row over a connection of its own, and removes the row at the end."""

    def __init__(
        self,
        settings: Settings,
        kind: Kind,
        queues: Sequence[str],
        *,
        slots: int,
        activity: Callable[[], Activity],
        process_id: UUID | None = None,
        summarizer: tuple[str | None, str | None] = (None, None),
    ) -> None:
        self.process = Process(
            process_id or ids.new_id(),
            kind,
            socket.gethostname(),
            os.getpid(),
            list(queues),
            VERSION,
            slots,
            *summarizer,
        )
        self._database = Database(settings, "heartbeat")
        self._seconds = settings.heartbeat_seconds
        self._activity = activity
        self._losses = Losses()
        self._ended = Event()
        self._thread = Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Remove the row, if the database can be reached in time."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        while True:
            self._beat()
            if self._ended.wait(self._seconds):
                break
        self._leave()
        self._database.close()

    def _beat(self) -> None:
        try:
            with self._database.transaction(None) as connection:
                beat = processes.beat(connection, self.process, self._activity())
        except SQLAlchemyError as error:
            log.warning("heartbeat.lost", error=fault(error))
        else:
            self._losses.note(beat)

    def _leave(self) -> None:
        try:
            with self._database.transaction(None) as connection:
                processes.leave(connection, self.process.id)
        except SQLAlchemyError as error:
            log.warning("heartbeat.lost", error=fault(error))
