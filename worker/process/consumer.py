"""Celery's consumer, kept from ending the worker when Redis goes while tasks are under way, or has bad messages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
from celery.worker.consumer import Consumer
from kombu.transport.redis import SentinelTransport

from worker.process.wary_channel import MISSHAPEN, WaryChannel, WarySentinelChannel, refused

if TYPE_CHECKING:
    from worker.metrics import Refusal

log = structlog.get_logger()

LONGEST_PAUSE_SECONDS: Final = 5
"""Seconds between two tries to connect; Celery's own pauses grow to 30, for which checks would wait."""


class SteadyConsumer(Consumer):  # type: ignore[misc] # Celery ships no types
    """Loses its connection without losing the tasks that it is at, and goes on after messages that make no sense.

    kombu 5.7 goes on using the channel of a connection that it has closed: it puts messages back by it, and
    acknowledges the tasks that end later. Both meet an AttributeError, which Celery takes for a fault of the worker's.
    Celery rejects most bad messages with their whole content in its log, and crashes on some. A message is a hint, so
    that rejecting any loses nothing.
    """

    def ensure_connected(self, conn: Any) -> Any:
        """Return the connection once there is one; tried every few seconds, however long the broker is away."""
        if isinstance(conn.transport, SentinelTransport):
            # Of the class: kombu makes a new transport for each Sentinel that it turns to.
            SentinelTransport.Channel = WarySentinelChannel
        else:
            conn.transport.Channel = WaryChannel
        conn.ensure_connection = partial(conn.ensure_connection, interval_max=LONGEST_PAUSE_SECONDS)
        return super().ensure_connected(conn)

    def on_connection_error_after_connected(self, exc: BaseException) -> None:
        """Be done with the channel, and get ready to connect again."""
        channel = getattr(self.task_consumer, "channel", None)
        if channel is not None:
            _retire(channel, self.connection_errors + self.channel_errors)
        super().on_connection_error_after_connected(exc)

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Any:
        """Return what takes messages; one that it cannot make a task of is rejected."""
        receive = super().create_task_handler(*args, **kwargs)

        def receive_or_refuse(message: Any) -> None:
            try:
                receive(message)
            except MISSHAPEN as error:
                self._reject(message, "misshapen", error)

        return receive_or_refuse

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Reject a message whose body cannot be read."""
        self._reject(message, "unreadable", exc)

    def on_unknown_message(self, body: Any, message: Any) -> None:  # noqa: ARG002 - Celery's signature
        """Reject a message that asks for no task."""
        self._reject(message, "misshapen")

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:  # noqa: ARG002 - Celery's signature
        """Reject a message that asks for a task that there is not."""
        self._reject(message, "unknown_task", exc)

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:  # noqa: ARG002 - Celery's signature
        """Reject a message whose task cannot be made, or whose content type is not accepted."""
        self._reject(message, "misshapen", exc)

    def _reject(self, message: Any, reason: Refusal, error: BaseException | None = None) -> None:
        refused(reason, error)
        if not message.acknowledged:
            message.reject_log_error(log, self.connection_errors)


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
