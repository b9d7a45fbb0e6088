"""Processes that ended without a word: what they held is given back before their leases run out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy.exc import SQLAlchemyError

from runtime.log import fault
from store.operations import processes
from worker.process import place

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from runtime.settings import Settings
    from store.operations.processes import Process
    from worker.database import Database

log = structlog.get_logger()

_LOGGED: Final = ("kind", "queues", "host", "pid", "version")
GAP_BEATS: Final = 1.5
"""Heartbeats between two looks after which nobody can say what happened meanwhile: whoever lives has half as many left
to be heard of again."""


class Missing:
    """Looks every heartbeat for processes that are gone.

    One at the same place (a host or a container) is gone when the system says so. Any other when it has missed its
    heartbeats, all of them while the database answered here: after an outage, or a pause of this process, everybody has
    as long again to be heard of. Time is the database's.
    """

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._watched: tuple[datetime, datetime] | None = None
        """The first and the last look without a gap."""

    def look(self) -> int:
        """Have the leases of processes that are gone expire; return how many, 0 where the database cannot be asked."""
        try:
            expired = self._look()
        except SQLAlchemyError as error:
            self._watched = None
            log.warning("look.failed", error=fault(error))
            return 0
        for process_id, (process, leases) in expired.items():
            # Of one whose row is gone, as another sweeper has found it too, its id is all there is.
            fields = {} if process is None else {name: getattr(process, name) for name in _LOGGED}
            log.warning("process.missing", process_id=str(process_id), **fields, leases=leases)
        return sum(leases for _, leases in expired.values())

    def _look(self) -> dict[UUID, tuple[Process | None, int]]:
        beat = self._settings.heartbeat_seconds
        with self._database.transaction(None) as connection:
            now, there = processes.at(connection, place.here() or "")
            gone = [each for each in there if place.has_ended(each.pid, each.pid_started)]
            expired = {each.id: (each, processes.leave(connection, each.id)) for each in gone}
            missed = processes.expire_missed(connection, beat, self._settings.lease_seconds, self._note(now))
            rows = {each.id: each for each in processes.of(connection, missed)} if missed else {}
            return expired | {process_id: (rows.get(process_id), leases) for process_id, leases in missed.items()}

    def _note(self, now: datetime) -> float:
        """Note a look and return for how many seconds there has been no gap; a clock that was set back is one."""
        first, last = self._watched or (now, now)
        if not 0 <= (now - last).total_seconds() <= GAP_BEATS * self._settings.heartbeat_seconds:
            first = now
        self._watched = first, now
        return (now - first).total_seconds()
