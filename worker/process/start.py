"""Starting a worker process."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any, Final

import structlog
from celery.exceptions import SecurityWarning
from celery.signals import setup_logging

from runtime.broker import CHECK_TASK, CHECKS, QUEUES
from runtime.release import VERSION
from runtime.tracing import TRACING
from store.operations.processes import Activity
from worker.app import create_app
from worker.metrics import METRICS, Pipe
from worker.process.exposition import Exposition, ProcessGauges
from worker.process.rejections import count_rejections
from worker.process.shutdown import end_in_time
from worker.process.worker_life import SERVICE, WorkerLife, consumed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runtime.settings import Settings

log = structlog.get_logger()

FROZEN_FACTOR: Final = 3
"""Times the bound for a stuck task after which a whole task may be over: it is no bound on its progress."""
LOST_SECONDS: Final = 60.0
"""Seconds on top, in which the worker finds a process that has ended by itself; its message would be lost otherwise."""


def run_worker(settings: Settings, queues: Sequence[str], concurrency: int | None) -> int:
    """Serve queues until SIGTERM; return the exit code, 1 for a worker that gave itself up.

    Checks compute, so a worker that serves only them has processes; summaries wait for a model, so any other has
    threads. Raises ValueError for a queue that does not exist.
    """
    if unknown := sorted(set(queues) - set(QUEUES)):
        raise ValueError(f"unknown queue {', '.join(unknown)}; there are {', '.join(QUEUES)}")
    _quieten()
    count_rejections()
    computes = list(queues) == [CHECKS]
    if concurrency:
        settings = settings.model_copy(update={"checks_concurrency": concurrency, "summaries_concurrency": concurrency})
    slots = settings.checks_concurrency if computes else settings.summaries_concurrency
    app = create_app(settings)
    services = app.tasks[CHECK_TASK].services
    end_in_time(services)
    if not computes and services.resources.can_summarize:
        # The SDK takes seconds to load: now, and not while the first run's lease is running out.
        log.info("worker.summarizer", name=services.resources.summarizer.name)
        provider = settings.chosen_provider
        if provider is not None and not settings.model_access(provider).is_open:
            # It works all the same: every summary is an extract, and says why.
            log.warning("worker.no_key", summarizer=settings.chosen_summarizer, variable=f"{provider.upper()}_API_KEY")
    if computes:
        # A process that is held by C code cannot look after itself, as it does otherwise.
        app.conf.task_time_limit = settings.task_stuck_seconds * FROZEN_FACTOR + LOST_SECONDS
    worker = app.Worker(
        queues=list(queues),
        pool="prefork" if computes else "threads",
        concurrency=slots,
        optimization="fair",
        without_gossip=True,
        without_mingle=True,
        quiet=True,
    )
    # Of a pool of processes each has an engine of its own, and one task at a time: there is no pool to speak of.
    engines = {} if computes else {"worker": services.database.engine}
    METRICS.registry.register(ProcessGauges(lambda: Activity(*consumed()[1:]), engines))
    exposition = Exposition(settings, pipe=Pipe() if computes else None)
    if not computes:
        TRACING.start(settings, SERVICE)
    with WorkerLife(settings, services.process_id, queues, slots, services.progress, exposition) as life:
        log.info("worker.started", queues=list(queues), slots=slots, release=VERSION)
        worker.start()
    TRACING.stop()
    return max(int(worker.exitcode or 0), int(life.was_given_up))


def _quieten() -> None:
    """Keep Celery's hands off the log."""
    # A receiver stands for "logging is set up": without one Celery lowers the root logger's level to its own.
    setup_logging.connect(_logging_is_set_up, weak=False)
    # Celery logs a failed task with its traceback, which may hold values of rows; ServiceTask logs its type.
    logging.getLogger("celery.app.trace").setLevel(logging.CRITICAL)
    # It warns of pickle; only JSON is accepted here, and containers have no superuser.
    warnings.filterwarnings("ignore", category=SecurityWarning)


def _logging_is_set_up(**_: Any) -> None:
    """Do nothing."""
