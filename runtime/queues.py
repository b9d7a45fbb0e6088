"""Names of the queues in which runs wait, as Celery and the table `runs` have them."""

from __future__ import annotations

from enum import StrEnum


class Queue(StrEnum):
    """Workers that a run waits for."""

    CHECKS = "checks"
    """Workers that compute."""
    SUMMARIES = "summaries"
    """Workers that wait for models."""
