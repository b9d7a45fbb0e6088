"""Celery's consumer, kept from ending the worker when Redis goes while tasks are under way."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import structlog
from celery.worker.consumer import Consumer

log = structlog.get_logger()

LONGEST_PAUSE_SECONDS: Final = 5
"""Seconds between two tries to connect; Celery's own pauses grow to 30, for which checks would wait."""


class SteadyConsumer(Consumer):  # type: ignore[misc] # Celery ships no types
    """Loses its connection without losing the tasks that it is at.

    kombu 5.7 goes on using the channel of a connection that it has closed: it puts messages back by it, and
    acknowledges the tasks that end later. Both meet an AttributeError, which Celery takes for a fault of the worker's.
    """

    def ensure_connected(self, conn: Any) -> Any:
        """Return the connection once there is one; tried every few seconds, however long the broker is away."""
        conn.ensure_connection = partial(conn.ensure_connection, interval_max=LONGEST_PAUSE_SECONDS)
        return super().ensure_connected(conn)

    def on_connection_error_after_connected(self, exc: BaseException) -> None:
        """Be done with the channel, and get ready to connect again."""
        channel = getattr(self.task_consumer, "channel", None)
        if channel is not None:
            _retire(channel, self.connection_errors + self.channel_errors)
        super().on_connection_error_after_connected(exc)


def _retire(channel: Any, errors: tuple[type[Exception], ...]) -> None:
    """Put the channel's unacknowledged messages back if Redis still takes them, and have nothing else done by it.

    Messages of tasks under way come again then; the task finds nothing left to do. Those that are gone with Redis are
    for the sweeper.
    """
    try:
        channel.qos.restore_unacked_once()
    except errors as error:
        log.warning("messages.not_put_back", error=type(error).__name__)
    channel.do_restore = False
    channel.basic_ack = channel.basic_reject = _do_nothing


def _do_nothing(*_: Any, **__: Any) -> None:
    """Take the place of a call that would need the connection."""
