"""Starting a worker process and a sweeper."""

from __future__ import annotations

import signal
import threading
import warnings
from typing import TYPE_CHECKING

from celery.exceptions import SecurityWarning

from store.broker import CHECKS, QUEUES, celery_app
from worker.app import create_app
from worker.sweeper import Sweeper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from store.settings import Settings


def run_worker(settings: Settings, queues: Sequence[str], concurrency: int | None) -> int:
    """Serve queues until SIGTERM; return the exit code.

    Checks compute, so a worker that serves only them has processes; summaries wait for a model, so any other has
    threads. Raises ValueError for a queue that does not exist.
    """
    if unknown := sorted(set(queues) - set(QUEUES)):
        raise ValueError(f"unknown queue {', '.join(unknown)}; there are {', '.join(QUEUES)}")
    # It warns of pickle; only JSON is accepted here, and containers have no superuser.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    computes = list(queues) == [CHECKS]
    default = settings.checks_concurrency if computes else settings.summaries_concurrency
    worker = create_app(settings).Worker(
        queues=list(queues),
        pool="prefork" if computes else "threads",
        concurrency=concurrency or default,
        loglevel=settings.log_level.upper(),
        optimization="fair",
        without_gossip=True,
        without_mingle=True,
        quiet=True,
    )
    worker.start()
    return int(worker.exitcode or 0)


def run_sweeper(settings: Settings) -> int:
    """Sweep until SIGTERM or SIGINT; return the exit code."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    Sweeper(settings, celery_app(settings, "palimpsest-sweeper")).run(stop)
    return 0
