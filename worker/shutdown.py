"""Ending a worker: within a bounded time, and without waiting for what another worker can do."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Final

import structlog
from billiard.process import active_children
from celery.signals import worker_shutting_down

if TYPE_CHECKING:
    from worker.task import Services

log = structlog.get_logger()

STOP_SECONDS: Final = 30.0
"""Seconds a worker may take to finish what it computes; Celery alone would wait for ever."""


def end_in_time(services: Services) -> None:
    """Have this process's worker give up its model calls when it is told to stop, and end by itself if it hangs."""

    def begin(**_: Any) -> None:
        services.compactor.calls.stop()
        overdue = threading.Timer(STOP_SECONDS, _leave)
        overdue.daemon = True
        overdue.start()

    worker_shutting_down.connect(begin, weak=False)


def _leave() -> None:
    """End at once: leases run out, unacknowledged messages come again, open transactions are rolled back."""
    log.warning("worker.stop_overdue", seconds=STOP_SECONDS)
    for child in active_children():
        os.kill(child.pid, signal.SIGKILL)
    os._exit(1)
