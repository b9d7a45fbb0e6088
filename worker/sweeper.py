"""The sweeper: finds due checks whose wake-up got lost, and runs that nobody works on. Any number may run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from store import conversations, runs
from store.broker import CHECK_TASK, CHECKS, RUN_TASK
from worker.database import Database

if TYPE_CHECKING:
    from threading import Event

    from celery import Celery

    from store.settings import Settings

log = structlog.get_logger()

BATCH: Final = 50
"""Conversations that one check task carries."""
LIMIT: Final = 1_000
"""Rows that one sweep takes on; the next has the rest."""


class Sweeper:
    """Wakes workers for what Postgres says is left to do."""

    def __init__(self, settings: Settings, app: Celery) -> None:
        self._settings = settings
        self._app = app
        self._database = Database(settings, "sweeper")

    def run(self, stop: Event) -> None:
        """Sweep until `stop` is set."""
        log.info("sweeper.started", interval_seconds=self._settings.sweep_interval_seconds)
        while True:
            self.sweep()
            if stop.wait(self._settings.sweep_interval_seconds):
                break
        self.close()

    def close(self) -> None:
        """Close every connection to the database."""
        self._database.close()

    def sweep(self) -> int:
        """Wake workers for everything overdue; return how much that was.

        What fails is logged, and the next sweep tries again.
        """
        found = 0
        for part in (self._runs, self._checks):
            try:
                found += part()
            except Exception as error:  # noqa: BLE001 - a sweeper that ends is worse than one that complains
                log.warning("sweep.failed", part=part.__name__.strip("_"), error=type(error).__name__)
        return found

    def _checks(self) -> int:
        with self._database.transaction(None) as connection:
            overdue = conversations.overdue_checks(connection, self._settings.check_overdue_seconds, LIMIT)
        for start in range(0, len(overdue), BATCH):
            batch = [str(identifier) for identifier in overdue[start : start + BATCH]]
            self._app.send_task(CHECK_TASK, args=[batch], queue=CHECKS)
        if overdue:
            log.info("sweep.checks", count=len(overdue))
        return len(overdue)

    def _runs(self) -> int:
        with self._database.transaction(None) as connection:
            stranded = runs.stranded(connection, self._settings.run_overdue_seconds, LIMIT)
        for run_id, tenant_id in stranded:
            with self._database.transaction(tenant_id) as connection:
                queue = runs.requeue(connection, run_id, self._settings.max_attempts)
            if queue == "dead":
                log.error("run.dead", run_id=str(run_id))
            elif queue is not None:
                self._app.send_task(RUN_TASK, args=[str(tenant_id), str(run_id)], queue=queue)
        if stranded:
            log.info("sweep.runs", count=len(stranded))
        return len(stranded)
