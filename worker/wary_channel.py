"""Kombu's Redis channel, kept from ending the worker over bytes in a queue that are no message.

Redis has no types: whoever can write to a list can write anything into it. kombu decodes an item after it is off the
list and outside of everything that guards against bad messages (celery/celery#1113, celery/kombu#2421).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog
from kombu.transport.redis import Channel

from worker.metrics import METRICS

if TYPE_CHECKING:
    from worker.metrics import Refusal

log = structlog.get_logger()

MISSHAPEN: Final = (AttributeError, LookupError, TypeError, ValueError)
"""What is raised over a part of a message that is missing or is not what it should be."""


def refused(reason: Refusal, error: BaseException | None = None) -> None:
    """Log and count a message that was put aside, without a word of what stands in it."""
    METRICS.message_refused(reason)
    log.error("message.refused", reason=reason, error=type(error).__name__ if error else None)


class NotAMessageError(ValueError):
    """What came from the queue has no envelope, or one that cannot be acknowledged."""


class _Message(Channel.Message):  # type: ignore[misc] # kombu ships no types
    def __init__(self, payload: Any, channel: Any = None, **kwargs: Any) -> None:
        try:
            super().__init__(payload, channel, **kwargs)
            if not (isinstance(self.delivery_tag, str) and {"exchange", "routing_key"} <= self.delivery_info.keys()):
                raise NotAMessageError
        except MISSHAPEN as error:
            raise NotAMessageError from error


class WaryChannel(Channel):  # type: ignore[misc] # kombu ships no types
    """Passes over what is no message: it is off the queue by then, and nothing has to be acknowledged."""

    Message = _Message

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except (ValueError, RecursionError) as error:
            refused("no_message", error)
            return True
