"""Rejection of messages that no task can be made of. They are counted and logged without their content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import structlog
from celery.exceptions import Reject
from celery.signals import task_rejected, task_unknown

from worker.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker.metrics import Refusal

log = structlog.get_logger()


def count_rejections() -> None:
    """Count the messages that Celery itself rejects in this process."""
    task_unknown.connect(_count_unknown_task, weak=False)
    task_rejected.connect(_count_misshapen_message, weak=False)


def read_ids(texts: Sequence[str]) -> list[UUID]:
    """Return the ids that a message carries. Raises Reject if one of them is no id."""
    try:
        return [UUID(text) for text in texts]
    except (AttributeError, TypeError, ValueError):
        _count("invalid_ids")
        raise Reject("a message carries ids", requeue=False) from None


def _count_unknown_task(**_: Any) -> None:
    _count("unknown_task")


def _count_misshapen_message(**_: Any) -> None:
    _count("misshapen")


def _count(reason: Refusal) -> None:
    METRICS.message_refused(reason)
    log.error("message.refused", reason=reason)
