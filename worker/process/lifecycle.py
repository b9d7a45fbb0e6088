"""What a worker and beat do at their start and end, by Celery's signals: logs, heartbeat, metrics and traces."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
import time
import warnings
from typing import TYPE_CHECKING, Any, Final

import structlog
from celery.exceptions import SecurityWarning
from celery.signals import (
    beat_init,
    celeryd_after_setup,
    setup_logging,
    worker_before_create_process,
    worker_process_init,
    worker_process_shutdown,
    worker_ready,
    worker_shutdown,
    worker_shutting_down,
)
from celery.worker import state

from runtime.launch import die_with_parent
from runtime.log import configure_logging
from runtime.release import VERSION
from runtime.settings import read_once
from runtime.tracing import TRACING
from store.operations.processes import Activity
from worker.metrics import METRICS, Pipe
from worker.process.exposition import Exposition, ProcessGauges
from worker.process.heartbeat import WorkerHeartbeat
from worker.process.rejections import count_rejections
from worker.process.shutdown import leave_in_time, leave_now
from worker.services import process_services

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runtime.settings import Settings

log = structlog.get_logger()

# It warns of pickle; only JSON is accepted here, and containers have no superuser.
warnings.filterwarnings("ignore", category=SecurityWarning)

SERVICE: Final = "palimpsest-worker"
"""What traces call a worker, unless OTEL_SERVICE_NAME does."""
PREFORK: Final = "celery.concurrency.prefork"


@setup_logging.connect
def set_up_logging(**_: Any) -> None:
    """Send Celery's log the way of ours. A receiver also keeps Celery from setting up a log of its own."""
    configure_logging(read_once())
    # Celery logs a failed task with its traceback, which may hold values of rows; ServiceTask logs its type.
    logging.getLogger("celery.app.trace").setLevel(logging.CRITICAL)


class WorkerLife:
    """The threads of a worker's main process: its heartbeat, its scrapes."""

    def __init__(self, settings: Settings, queues: Sequence[str], slots: int, *, is_prefork: bool) -> None:
        self.parent = os.getpid()
        self.settings = settings
        self.queues, self.slots = queues, slots
        services = process_services()
        services.sweeper.begin_counters()
        self.heartbeat = WorkerHeartbeat(
            settings,
            "worker",
            queues,
            slots=slots,
            activity=activity,
            process_id=services.process_id,
            summarizer=(settings.chosen_summarizer, settings.chosen_model),
        )
        # Each process of a pool has an engine of its own and one task at a time.
        engines = {} if is_prefork else {"worker": services.database.engine}
        METRICS.registry.register(ProcessGauges(activity, engines))
        self.exposition = Exposition(settings, pipe=Pipe() if is_prefork else None)
        if not is_prefork:
            TRACING.start(settings, SERVICE)

    def start(self) -> None:
        """Begin to beat and to answer scrapes."""
        self.heartbeat.start()
        self.exposition.start()
        log.info("worker.started", queues=list(self.queues), slots=self.slots, release=VERSION)

    def stop(self) -> None:
        """End the threads, and take the process off the list of those alive."""
        TRACING.stop()
        self.heartbeat.stop()
        self.exposition.stop()


_life: list[WorkerLife] = []


@celeryd_after_setup.connect
def prepare_worker(instance: Any, **_: Any) -> None:
    """Make what the processes of a pool share before they are forked."""
    settings = read_once()
    count_rejections()
    queues = sorted(instance.app.amqp.queues.consume_from)
    is_prefork = instance.pool_cls.__module__ == PREFORK
    _life[:] = [WorkerLife(settings, queues, instance.concurrency, is_prefork=is_prefork)]
    if not is_prefork:
        _load_summarizer(settings)


def _load_summarizer(settings: Settings) -> None:
    """Load the summarizer's SDK, which takes seconds, before the lease of a run begins to run out."""
    resources = process_services().resources
    if not resources.can_summarize:
        return
    log.info("worker.summarizer", name=resources.summarizer.name)
    provider = settings.chosen_provider
    if provider is not None and not settings.model_access(provider).is_open:
        # Every summary is an extract then, and says why.
        log.warning("worker.no_key", summarizer=settings.chosen_summarizer, variable=f"{provider.upper()}_API_KEY")


@worker_ready.connect
def begin_worker(**_: Any) -> None:
    """Begin to beat, once the pool is up: a forked process must not find locks held by another thread."""
    for life in _life:
        life.start()


@worker_shutting_down.connect
def begin_shutdown(**_: Any) -> None:
    """Give up the model calls under way, and leave by force if a task hangs."""
    process_services().resources.calls.stop()
    leave_in_time()


@worker_shutdown.connect
def end_worker(**_: Any) -> None:
    """End the threads of the main process."""
    for life in _life:
        life.stop()


@worker_before_create_process.connect
def share_pages(**_: Any) -> None:
    """Leave the objects there are out of later collections, which would copy the pages that a fork shares."""
    gc.collect()
    gc.freeze()


@worker_process_init.connect
def begin_pool_process(**_: Any) -> None:
    """Prepare a process of a prefork pool, which ends with its parent."""
    die_with_parent(signal.SIGKILL)
    for life in _life:
        if os.getppid() != life.parent:
            leave_now()
        life.exposition.leave_to_parent()
    TRACING.start(read_once(), SERVICE)


@worker_process_shutdown.connect
def end_pool_process(**_: Any) -> None:
    """Send the last traces."""
    TRACING.stop()


@beat_init.connect
def begin_beat(**_: Any) -> None:
    """Begin to beat and to answer scrapes, in the process that sends the periodic tasks."""
    settings = read_once()
    heartbeat = WorkerHeartbeat(settings, "beat", [], slots=1, activity=Activity)
    heartbeat.start()
    atexit.register(heartbeat.stop)
    METRICS.registry.register(ProcessGauges(Activity, {}))
    Exposition(settings).start()
    log.info("beat.started", interval_seconds=settings.sweep_interval_seconds, release=VERSION)


_begun: dict[str, float] = {}
"""Monotonic time at which each task under way was first seen; Celery has its start by the time of day."""


def activity() -> Activity:
    """Return how many tasks the worker's pool is at, and for how long the oldest has been under way."""
    global _begun  # noqa: PLW0603 - as the requests that it is about, which Celery keeps in a module
    while True:
        try:
            under_way = [request.id for request in list(state.active_requests)]
        except RuntimeError:  # a task began or ended meanwhile
            continue
        now, known = time.monotonic(), _begun
        _begun = {task: known.get(task, now) for task in under_way}
        return Activity(len(under_way), now - min(_begun.values()) if _begun else None)
