"""Kombu's Redis channel, kept from believing what stands in Redis.

Redis has no types: whoever can write to it can write anything into a queue, and into the books that kombu keeps of
messages under way. kombu reads both outside of everything that guards against bad messages (celery/celery#1113,
celery/kombu#2421).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import structlog
from kombu.transport.redis import Channel, SentinelChannel
from redis.exceptions import ResponseError

from runtime.broker import KEY_TYPES, PREFIX
from worker.metrics import METRICS
from worker.process.bounded_redis import BoundedConnection, BoundedSentinelConnection, BoundedSSLConnection
from worker.process.task_envelopes import NotAMessageError, taken_before, written_anew

if TYPE_CHECKING:
    from collections.abc import Iterator

    from worker.metrics import Refusal

log = structlog.get_logger()

MISSHAPEN: Final = (AttributeError, LookupError, TypeError, ValueError)
"""What is raised over a part of a message that is missing or is not what it should be."""
_WRONG_TYPE: Final = "WRONGTYPE"
"""How Redis begins what it says of a key of another type."""


def refused(reason: Refusal, error: BaseException | None = None) -> None:
    """Log and count a message that was rejected, without its content."""
    METRICS.message_refused(reason)
    log.error("message.refused", reason=reason, error=type(error).__name__ if error else None)


class _Message(Channel.Message):  # type: ignore[misc] # kombu ships no types
    def __init__(self, payload: Any, channel: Any = None, **kwargs: Any) -> None:
        super().__init__(written_anew(payload), channel, **kwargs)


class _WaryQoS(Channel.QoS):  # type: ignore[misc] # as above
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._placeless: set[str] = set()
        """Messages that are still on the books, and take no place among those under way."""

    def append(self, message: Any, delivery_tag: str) -> None:
        """Put a message on the books; one that comes again takes a place again."""
        self._placeless.discard(delivery_tag)
        super().append(message, delivery_tag)

    def can_consume(self) -> bool:
        """Tell whether there is a place for another message."""
        most = self.prefetch_count
        return not most or len(self._delivered) - len(self._dirty) - len(self._placeless) < most

    def ack(self, delivery_tag: str) -> None:
        """Take a message off the books."""
        with self._giving_up_its_place(delivery_tag):
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 - kombu's
        """Take a message off the books, or put it back into its queue."""
        with self._giving_up_its_place(delivery_tag):
            super().reject(delivery_tag, requeue)

    @contextmanager
    def _giving_up_its_place(self, delivery_tag: str) -> Iterator[None]:
        """Have a message that Redis does not take off the books keep no place among those under way.

        Celery logs the error alone. With as many as are taken at a time nothing more would be: nobody waits for
        messages then, who would see that the connection is lost. With that it is put back, where Redis still has it.
        """
        try:
            yield
        except Exception as error:
            self._placeless.add(delivery_tag)
            if not isinstance(error, ResponseError):
                raise
            self.channel.throw_away_wrong_types(error)
            self._quick_ack(delivery_tag)  # it went with the books
        self._placeless.discard(delivery_tag)

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Put back what a worker that died was at; books that are none are thrown away."""
        try:
            super().restore_visible(*args, **kwargs)
        except ResponseError as error:
            self.channel.throw_away_wrong_types(error)

    def restore_by_tag(self, tag: Any, client: Any = None, leftmost: bool = False) -> None:  # noqa: FBT001, FBT002 - kombu's
        """Put one message back into its queue; an entry that is none is taken off the books."""
        problems: list[NotAMessageError] = []

        def restore(pipe: Any) -> None:
            kept = pipe.hget(self.unacked_key, tag)
            pipe.multi()
            self._remove_from_indices(tag, pipe)
            problems.clear()
            if kept is None:
                return
            try:
                message, queue = taken_before(kept)
            except NotAMessageError as error:
                problems.append(error)
            else:
                self.channel._do_restore_message(message, "", queue, pipe, leftmost)  # noqa: SLF001 - as kombu does

        with self.channel.conn_or_acquire(client) as connected:
            connected.transaction(restore, self.unacked_key)
        for problem in problems:
            refused("bookkeeping", problem)


class _Wary(Channel):  # type: ignore[misc] # kombu ships no types
    """Passes over what is no message: it is off the queue by then, and nothing has to be acknowledged."""

    Message = _Message
    QoS = _WaryQoS

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except NotAMessageError as error:
            refused(error.reason, error.__cause__)
        except (ValueError, RecursionError) as error:
            refused("no_message", error)
        except ResponseError as error:
            self.throw_away_wrong_types(error)
        return True

    def _size(self, queue: str) -> int:
        """Return how many messages wait; asked as a worker begins, before it has read anything."""
        try:
            return int(super()._size(queue))
        except ResponseError as error:
            self.throw_away_wrong_types(error)
            return 0

    def _queue_bind(self, *args: Any) -> None:
        """Note a queue where messages for it are looked up, as a worker begins."""
        try:
            super()._queue_bind(*args)
        except ResponseError as error:
            self.throw_away_wrong_types(error)
            super()._queue_bind(*args)

    def throw_away_wrong_types(self, error: ResponseError) -> None:
        """Remove keys of the transport's own that are of another type than it made them; raise errors of other kinds.

        All that is lost with them are wake-ups, which the sweeper makes up for. Where none is left, another worker was
        faster.
        """
        with self.conn_or_acquire() as client:
            wrong = [
                key
                for key, kind in KEY_TYPES.items()
                if client.type(PREFIX + key).decode() not in {kind, "none"} and client.delete(key)
            ]
        if not wrong and _WRONG_TYPE not in str(error):
            raise error
        for _ in wrong:
            refused("bookkeeping", error)


class WaryChannel(_Wary):
    """A channel of one Redis."""

    connection_class = BoundedConnection
    connection_class_ssl = BoundedSSLConnection


class WarySentinelChannel(_Wary, SentinelChannel):  # type: ignore[misc] # as above
    """A channel of whichever Redis is the master."""

    connection_class = BoundedSentinelConnection
