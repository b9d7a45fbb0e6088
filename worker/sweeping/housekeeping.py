"""Housekeeping: removing what its time is over for, a little at a time."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy.exc import DBAPIError

from runtime.log import fault
from store.conversations import usages
from store.operations import housekeeping, processes
from store.operations.housekeeping import FIRST, Pass
from store.operations.processes import FORGOTTEN_SECONDS
from store.recall import requests
from worker.metrics import METRICS
from worker.sweeping.errands import ERRANDS
from worker.sweeping.retention import MessageRetention

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from sqlalchemy import Connection

    from runtime.settings import Settings
    from worker.database import Database

log = structlog.get_logger()

BATCH: Final = 1_000
"""Rows that one transaction removes or looks at."""
BATCHES: Final = 20
"""Transactions of one kind in a round; what is left then waits for the next sweep."""
_DAY: Final = 86_400.0
LONGEST_SECONDS: Final = 40 * 365 * _DAY
"""What is kept for so long is kept for good: Postgres subtracts no such times, or none that an id can be of."""


class Housekeeper:
    """Carries out the retention settings. Any number may be at it: each passes over what another has locked."""

    def __init__(self, settings: Settings, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._database = database
        self._clock = clock
        self._next_at = 0.0
        self._places: dict[str, UUID] = {}
        self._retention = MessageRetention(settings, database, clock)

    def round(self) -> dict[str, int]:
        """Do a round if it is time for one; return the rows that went, by kind.

        Raises the first error of a kind, once those after it had their turn: unless nobody answers, one says nothing of
        the next.
        """
        if self._clock() < self._next_at:
            return {}
        self._next_at = self._clock() + self._settings.housekeeping_interval_seconds
        removed: dict[str, int] = {}
        failures: list[DBAPIError] = []
        for table, remove in self._kinds().items():
            try:
                removed[table] = remove()
            except DBAPIError as error:
                log.warning("housekeeping.failed", table=table, error=fault(error))
                failures.append(error)
                if getattr(error.orig, "sqlstate", None) is None:
                    break
            else:
                METRICS.removed(table, removed[table])
        if any(removed.values()):
            log.info("housekeeping.removed", **removed)
        if failures:
            raise failures[0]
        return removed

    def _kinds(self) -> dict[str, Callable[[], int]]:
        settings = self._settings
        runs_seconds, snapshots_seconds = settings.run_retention_days * _DAY, settings.snapshot_retention_days * _DAY
        oldest: dict[str, tuple[Callable[[Connection, float, int], int], float]] = {
            "idempotency_keys": (housekeeping.expire_idempotency_keys, settings.idempotency_key_hours * 3_600),
            **{each.table: (each.expire, each.retention_days(settings) * _DAY) for each in ERRANDS},
            "turn_usages": (usages.expire, settings.usage_retention_days * _DAY),
            "recall_requests": (requests.delete_expired, settings.recall_retention_days * _DAY),
        }
        return {
            "processes": partial(self._once, lambda connection: processes.forget(connection, FORGOTTEN_SECONDS)),
            **{table: partial(self._all, *each) for table, each in oldest.items()},
            "runs": partial(self._walk, "runs", housekeeping.expire_runs, runs_seconds),
            "snapshots": partial(self._walk, "snapshots", housekeeping.expire_snapshots, snapshots_seconds),
            "conversations": self._erase_expired,
        }

    def _erase_expired(self) -> int:
        """Erase conversations that are past their `message_retention_days`."""
        erased = self._retention.round()
        if self._retention.has_more:
            self._next_at = self._clock()
        return erased

    def _once(self, statement: Callable[[Connection], int]) -> int:
        with self._database.transaction(None) as connection:
            return statement(connection)

    def _all(self, expire: Callable[[Connection, float, int], int], seconds: float) -> int:
        """Remove the oldest rows, batch by batch."""
        removed = 0
        for _ in range(_batches(seconds)):
            batch = self._once(lambda connection: expire(connection, seconds, BATCH))
            removed += batch
            if batch < BATCH:
                return removed
        if _batches(seconds):
            # Keys come with every turn: what goes in a minute must not be what bounds the turns of a minute.
            self._next_at = self._clock()
        return removed

    def _walk(self, name: str, expire: Callable[[Connection, UUID, float, int], Pass], seconds: float) -> int:
        """Go on through all rows from where the last round left off; at the end begin anew the next time."""
        removed = 0
        for _ in range(_batches(seconds)):
            with self._database.transaction(None) as connection:
                last, batch = expire(connection, self._places.get(name, FIRST), seconds, BATCH)
            removed += batch
            self._places[name] = last or FIRST
            if last is None:
                break
        return removed


def _batches(seconds: float) -> int:
    """Return how many transactions a round has for what is kept for so many seconds."""
    return BATCHES if 0 < seconds < LONGEST_SECONDS else 0
