"""The one base class of all tasks: what a task has at hand, and what happens when it fails."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any, ClassVar

import structlog
from celery import Task

from store.broker import RUN_TASK, SUMMARIES
from worker.checks import Checker
from worker.compactor import Compactor
from worker.database import Database
from worker.summarizers import choose_summarizer

if TYPE_CHECKING:
    from store.runs import Lease
    from store.settings import Settings

log = structlog.get_logger()


class Services:
    """What the tasks of one process share; no connection is opened before it is used, so a fork is safe."""

    def __init__(self, settings: Settings, app: Any) -> None:
        self._app = app
        self.settings = settings
        self.worker = f"{socket.gethostname()}:{os.getpid()}"
        self.database = Database(settings, "worker")
        self.checker = Checker(self.database, settings.policy, worker=self.worker, lease_seconds=settings.lease_seconds)
        self.compactor = Compactor(
            self.database, choose_summarizer(settings), lease_seconds=settings.lease_seconds, wake=self._wake
        )

    def _wake(self, lease: Lease) -> None:
        """Tell the workers of summaries that a run waits; if nobody hears it, the sweeper will."""
        try:
            self._app.send_task(RUN_TASK, args=[str(lease.tenant_id), str(lease.run_id)], queue=SUMMARIES)
        except Exception as error:  # noqa: BLE001 - whatever the broker's client raises, the run is queued
            log.warning("wakeup.lost", error=type(error).__name__)


class ServiceTask(Task):  # type: ignore[misc] # Celery ships no types
    """Carries ids only, is acknowledged after the work, and never retried by the broker.

    A failure is left to the database: the due check is still due, the run's lease runs out, and the sweeper wakes
    somebody. Its traceback may hold values of rows, so only its type is logged.
    """

    abstract = True
    services: ClassVar[Services]

    def on_failure(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:  # noqa: ARG002
        """Log what failed."""
        log.error("task.failed", task=self.name, task_id=task_id, error=type(exc).__name__)
