"""Requests that are answered before their body has come: the rest is read for a moment, so that the answer arrives.

A connection that is closed with bytes unread is reset, and a client that is still sending then sees no answer: Python's
http.client, for one, reads none before it has sent all. This is nginx's `lingering_close`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from litestar.types import HTTPScope, Message, Receive, Send

SOON_SECONDS: Final = 0.05
"""Seconds that an answer waits for the end of a body which is nearly there, so that its connection can be kept."""
SOON_BYTES: Final = 256 * 1024
"""Bytes that come in them at most."""
IDLE_SECONDS: Final = 1.0
"""Seconds without a byte after which nothing is in flight any more."""
DRAIN_SECONDS: Final = 10.0
"""Seconds for which a body is read and thrown away after the answer."""
DRAIN_BYTES: Final = 128 * 1024 * 1024
"""Bytes of it; a body without an end ends the connection."""
_BODY: Final = frozenset({b"content-length", b"transfer-encoding"})


class AnsweredEarly:
    """The two ends of a request whose body, if the answer did not need it, is read for a while after that."""

    def __init__(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        names = {name for name, _ in scope["headers"]}
        self._receive = receive
        self._send = send
        self._has_ended = names.isdisjoint(_BODY)
        self._waits = b"expect" in names
        """Whether the client may wait for leave to send its body; it is not asked for a body that nobody needs."""

    async def receive(self) -> Any:
        """Return the next event of the request."""
        event: Any = await self._receive()
        self._has_ended = event["type"] != "http.request" or not event.get("more_body", False)
        return event

    async def send(self, message: Message) -> None:
        """Send a part of the answer, and with the last one what is in flight of the body to nowhere."""
        if self._has_ended:
            return await self._send(message)
        if message["type"] == "http.response.start":
            if not self._waits:
                await self._drain(SOON_SECONDS, SOON_SECONDS, SOON_BYTES)
            if not self._has_ended:
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            return await self._send(message)
        if message["type"] != "http.response.body" or message.get("more_body", False):
            return await self._send(message)
        await self._send({"type": "http.response.body", "body": message["body"], "more_body": True})
        await self._drain(DRAIN_SECONDS, IDLE_SECONDS, DRAIN_BYTES)
        return await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _drain(self, seconds: float, idle_seconds: float, most: int) -> None:
        until = asyncio.get_running_loop().time() + seconds
        size = 0
        try:
            async with asyncio.timeout_at(until):
                while not self._has_ended and size <= most:
                    async with asyncio.timeout(idle_seconds):
                        size += len((await self.receive()).get("body", b""))
        except TimeoutError:
            return
