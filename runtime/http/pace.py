"""How fast clients have to send a head and a body, and take an answer: what trickles more slowly ends.

What has come of a request, and what is left of an answer, is memory that other requests could have.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from runtime.errors import RequestError

if TYPE_CHECKING:
    from litestar.types import Receive

HEAD_SECONDS: Final = 30.0
"""Seconds in which a request's head has to be whole, from the connection's beginning or the head's first byte."""
GRACE_SECONDS: Final = 20.0
"""Seconds for a body beside those that it has for its bytes."""
LEAST_BYTES_PER_SECOND: Final = 64 * 1024
"""Bytes in a second that a body has to come with, and that an answer has to be taken with."""
BODY_SECONDS: Final = 180.0
"""Seconds for a whole body, whatever its size."""
READER_SECONDS: Final = 60.0
"""Seconds that a connection's client may fall behind in taking answers."""
MAX_WAITING: Final = 512
"""Connections of an address whose head has not come: of more the oldest are closed, so that new ones are let in."""


class BodyPace:
    """Receives the events of a request whose body has not ended, as long as that comes fast enough."""

    def __init__(self, idle_seconds: float = GRACE_SECONDS) -> None:
        """`idle_seconds` may pass without an event."""
        self._idle_seconds = idle_seconds
        self._began: float | None = None
        self._size = 0

    async def receive(self, receive: Receive) -> Any:
        """Return the next event; raise the problem that it does not come in time."""
        now = asyncio.get_running_loop().time()
        if self._began is None:
            self._began = now
        allowed = min(BODY_SECONDS, GRACE_SECONDS + self._size / LEAST_BYTES_PER_SECOND)
        try:
            async with asyncio.timeout_at(min(self._began + allowed, now + self._idle_seconds)):
                event: Any = await receive()
        except TimeoutError:
            detail = (
                f"A body comes with {LEAST_BYTES_PER_SECOND:,} bytes a second at least, {GRACE_SECONDS:g} seconds "
                f"beside that, and within {BODY_SECONDS:g} seconds."
            )
            raise RequestError("body_too_slow", detail) from None
        self._size += len(event.get("body", b""))
        return event


class ReaderPace:
    """Ends a connection whose client takes answers too slowly."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._left = READER_SECONDS
        self._paused_at = 0.0
        self._unread = 0
        self._timer: asyncio.TimerHandle | None = None

    def pause(self) -> None:
        """Begin to wait for the client."""
        self._paused_at = self._loop.time()
        self._unread = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(self._left, self._transport.abort)

    def resume(self) -> None:
        """Go on: the client gets back as many seconds as its bytes may take."""
        if self._timer is None:
            return
        self.stop()
        taken = max(0, self._unread - self._transport.get_write_buffer_size())
        waited = self._loop.time() - self._paused_at
        self._left = min(READER_SECONDS, self._left - waited + taken / LEAST_BYTES_PER_SECOND)

    def stop(self) -> None:
        """Wait no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class WaitingHeads:
    """The connections of each address whose head has not come, the oldest first."""

    def __init__(self) -> None:
        self._by_address: dict[str, OrderedDict[asyncio.Transport, asyncio.TimerHandle]] = {}

    def add(self, address: str, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for a head; close the oldest connection of an address that has too many of them."""
        waiting = self._by_address.setdefault(address, OrderedDict())
        waiting[transport] = loop.call_later(HEAD_SECONDS, transport.abort)
        if len(waiting) > MAX_WAITING:
            oldest, timer = waiting.popitem(last=False)
            timer.cancel()
            oldest.abort()

    def discard(self, address: str, transport: asyncio.Transport) -> None:
        """Wait no more."""
        waiting = self._by_address.get(address)
        timer = waiting.pop(transport, None) if waiting is not None else None
        if timer is not None:
            timer.cancel()
        if not waiting:
            self._by_address.pop(address, None)


WAITING_HEADS: Final = WaitingHeads()
"""Of this process."""
