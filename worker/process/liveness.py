"""Whether a process still does its work: it says so in the database, and ends by itself when it does not.

Two threads, so that neither a database nor a broker that hangs keeps a stuck process from being noticed.
"""

from __future__ import annotations

import faulthandler
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
from store.operations.processes import Activity, Process
from worker.database import Database
from worker.process import place
from worker.process.losses import Losses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from runtime.settings import Settings
    from store.operations.processes import Beat, Kind
    from worker.process.progress import Progress

log = structlog.get_logger()

FROZEN_SECONDS: Final = 60.0
"""Seconds in which no Python code of a process gets to run, after which it ends: held by a C call, or stopped."""
LOOK_SECONDS: Final = 5.0
"""Most seconds between two looks at what the tasks are at."""
JOIN_SECONDS: Final = 5.0
"""Seconds that the end of a process waits for its heartbeat to take its row off."""


class Heart:
    """Tells every few seconds that the process is alive, and takes it off when it ends.

    `beside` is called after each beat: what else there is to tell of whoever lives.
    """

    def __init__(
        self,
        database: Database,
        kind: Kind,
        queues: Sequence[str],
        *,
        slots: int,
        seconds: float,
        activity: Callable[[], Activity],
        process_id: UUID | None = None,
        summarizer: tuple[str | None, str | None] = (None, None),
        beside: Callable[[], None] = lambda: None,
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
            place.here(),
            place.started(os.getpid()),
            seconds,
        )
        self._database = database
        self._seconds = seconds
        self._activity = activity
        self._beside = beside
        self._losses = Losses()
        self._ended = Event()
        self._thread = Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Take the process off, if the database can be reached in time."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        while True:
            self._beat()
            self._beside()
            if self._ended.wait(self._seconds):
                break
        self.write(lambda connection: processes.leave(connection, self.process.id))
        self._database.close()

    def _beat(self) -> None:
        beats: list[Beat] = []
        if self.write(lambda connection: beats.append(processes.beat(connection, self.process, self._activity()))):
            self._losses.note(beats[-1])

    def write(self, statement: Callable[[Connection], object]) -> bool:
        """Write something over the heartbeat's own connection; False if the database does not take it."""
        try:
            with self._database.transaction(None) as connection:
                statement(connection)
        except SQLAlchemyError as error:
            log.warning("heartbeat.lost", error=fault(error))
            return False
        return True


def heart_database(settings: Settings) -> Database:
    """Return what a heart beats over: no connection of anybody else, who may have none left for it."""
    return Database(settings, "heartbeat")


class Watch:
    """Looks at the process's own tasks, and gives it up when one of them is stuck.

    `give_up` is called once, from the watch's own thread. With `frozen` the process also ends when not even this
    thread gets to run.
    """

    def __init__(
        self, progress: Progress, seconds: float, give_up: Callable[[], None], *, frozen: float | None = None
    ) -> None:
        self._progress = progress
        self._seconds = seconds
        self._give_up = give_up
        self._frozen = frozen
        self._ended = Event()
        self._thread = Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._ended.set()
        if self._frozen is not None:
            faulthandler.cancel_dump_traceback_later()

    def is_stuck(self) -> bool:
        """Tell whether the process is to be given up, and log why."""
        for stuck in self._progress.stuck(self._seconds)[:1]:
            log.error("task.stuck", task=stuck.task, seconds=round(stuck.seconds, 1))
            return True
        return False

    def _run(self) -> None:
        while True:
            if self._frozen is not None:
                # A thread of C code: it ends the process although Python's may be held up.
                faulthandler.dump_traceback_later(self._frozen, exit=True)
            if self._ended.wait(min(LOOK_SECONDS, self._seconds / 4)):
                break
            if self.is_stuck():
                return self._give_up()
        return self.stop()
