"""The sweeper: finds due checks whose wake-up got lost, and runs that nobody works on. Any number may run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
from kombu.exceptions import OperationalError
from sqlalchemy.exc import SQLAlchemyError

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
        """Sweep until `stop` is set. A sweep that fails is logged, and the next one tries again."""
        log.info("sweeper.started", interval_seconds=self._settings.sweep_interval_seconds)
        while True:
            try:
                self.sweep()
            except (SQLAlchemyError, OperationalError, OSError) as error:
                log.warning("sweep.failed", error=type(error).__name__)
            if stop.wait(self._settings.sweep_interval_seconds):
                break
        self._database.close()

    def sweep(self) -> int:
        """Wake workers for everything overdue; return how much that was."""
        return self._checks() + self._runs()

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
            if queue is None:
                log.error("run.dead", run_id=str(run_id))
            else:
                self._app.send_task(RUN_TASK, args=[str(tenant_id), str(run_id)], queue=queue)
        if stranded:
            log.info("sweep.runs", count=len(stranded))
        return len(stranded)
