"""Ending a worker: within a bounded time, and without waiting for what another worker can do."""

from __future__ import annotations

import os
import signal
import threading
from typing import Final

import structlog
from billiard.process import active_children

log = structlog.get_logger()

STOP_SECONDS: Final = 30.0
"""Seconds a process may take to finish what it computes; Celery alone would wait for ever."""


def leave_in_time() -> None:
    """End this process STOP_SECONDS from now, if it is still there then."""
    overdue = threading.Timer(STOP_SECONDS, _leave_late)
    overdue.daemon = True
    overdue.start()


def _leave_late() -> None:
    log.warning("worker.stop_overdue", seconds=STOP_SECONDS)
    leave_now()


def leave_now() -> None:
    """End at once: leases run out, unacknowledged messages come again, open transactions are rolled back."""
    for child in active_children():
        os.kill(child.pid, signal.SIGKILL)
    os._exit(1)
