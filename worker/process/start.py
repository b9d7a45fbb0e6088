"""`palimpsest worker` and `palimpsest beat`: Celery's own commands, with the options that fit the queues."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from runtime.broker import CHECKS, QUEUES
from worker.celery import app

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runtime.settings import Settings


def run_worker(settings: Settings, queues: Sequence[str], concurrency: int | None) -> int:
    """Run `celery worker` until SIGTERM and return its exit code.

    Checks compute, so a worker that serves only them has processes; summaries wait for a model, so any other has
    threads. Raises ValueError for a queue that does not exist.
    """
    if unknown := sorted(set(queues) - set(QUEUES)):
        raise ValueError(f"unknown queue {', '.join(unknown)}; there are {', '.join(QUEUES)}")
    computes = list(queues) == [CHECKS]
    slots = concurrency or (settings.checks_concurrency if computes else settings.summaries_concurrency)
    options = {
        "--queues": ",".join(queues),
        "--pool": "prefork" if computes else "threads",
        "--concurrency": str(slots),
        "--hostname": f"{'-'.join(queues)}-{os.getpid()}@%h",
    }
    flags = ["-O", "fair", "--without-gossip", "--without-mingle"]
    return _run("worker", *(f"{name}={value}" for name, value in options.items()), *flags)


def run_beat() -> int:
    """Run `celery beat` until SIGTERM or SIGINT and return its exit code."""
    return _run("beat")


def _run(command: str, *options: str) -> int:
    return int(app.start(["--quiet", command, *options]) or 0)
