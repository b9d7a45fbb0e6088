"""One connection to a provider: HTTP/1.1 by the parser that the server has too, as little as may be around it.

A general client takes a third of the time that a request through the gateway takes. What this one leaves to others:
proxies, redirects, cookies, encodings.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import httptools

from gateway.providers.answers import CutOffError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from gateway.doors import Headers

MOST_HEAD_BYTES: Final = 256 * 1024
"""Bytes of an answer's headers."""
MOST_WAITING_BYTES: Final = 64 * 1024
"""Bytes of an answer that wait for their client before no more are read from the provider."""
PIECE_BYTES: Final = 256 * 1024
"""Bytes of a request that are sent at a time: encrypting megabytes would keep everybody waiting."""
_SWITCHING: Final = 101
_LEAST_FINAL: Final = 200


class Connection(asyncio.Protocol):
    """A connection, for one call after the other."""

    def __init__(self, give_back: Callable[[Connection], None]) -> None:
        self._give_back = give_back
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._answer: OwnAnswer | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._may_write = True
        self.is_open = False
        self.expiry: asyncio.TimerHandle | None = None
        """When it is closed if nobody takes it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # of a TCP connection
        """Begin."""
        self._transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Take what the provider sends; what nobody asked for ends the connection."""
        if self._answer is None:
            return self.close()
        self._answer.take(data)
        return self.wake()

    def eof_received(self) -> bool:
        """Close a connection that the provider has closed."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """End what is under way."""
        self.is_open = False
        if self._answer is not None:
            self._answer.lost(error)
        self.wake()

    def pause_writing(self) -> None:
        """Wait before more is sent."""
        self._may_write = False

    def resume_writing(self) -> None:
        """Go on sending."""
        self._may_write = True
        self.wake()

    async def ask(self, head: bytes, body: bytes, *, is_head: bool, seconds: float) -> OwnAnswer:
        """Send a request and return the answer to it, its body still to come.

        Raises CutOffError for what is no answer, and TimeoutError where nothing comes or is taken for `seconds`.
        """
        answer = self._answer = OwnAnswer(self, is_head=is_head, seconds=seconds)
        try:
            self._transport.writelines((head, body) if len(body) <= PIECE_BYTES else (head,))
            if len(body) > PIECE_BYTES:
                await self._send_in_pieces(answer, body, seconds)
            answer.is_asked = True
            await answer.begun()
        except BaseException:
            answer.close()
            raise
        return answer

    async def _send_in_pieces(self, answer: OwnAnswer, body: bytes, seconds: float) -> None:
        view = memoryview(body)
        for start in range(0, len(body), PIECE_BYTES):
            if answer.has_begun:
                # A refusal that came before the end: it is not kept waiting for what nobody reads.
                answer.is_keepable = False
                return
            self._transport.write(view[start : start + PIECE_BYTES])
            while not self._may_write and self.is_open and not answer.has_begun:
                await self.wait(seconds)

    async def wait(self, seconds: float) -> None:
        """Wait until something happens; raise TimeoutError if nothing does for `seconds`."""
        self._waiter = waiter = self._loop.create_future()
        timer = self._loop.call_later(seconds, _give_up, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None

    def wake(self) -> None:
        """Have go on who waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def pause(self) -> None:
        """Read nothing more for now."""
        if self.is_open:
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Read again."""
        if self.is_open:
            self._transport.resume_reading()

    def ended(self, *, is_keepable: bool) -> None:
        """Begin to wait for the next call, or end with the last one."""
        self._answer = None
        if is_keepable and self.is_open and self._may_write:
            self._give_back(self)
        else:
            self.close()

    def close(self) -> None:
        """End it at once."""
        if self.is_open:
            self.is_open = False
            self._transport.abort()


class OwnAnswer:
    """What a provider answers on a connection of the gateway's own. Its methods named `on_` are the parser's."""

    def __init__(self, connection: Connection, *, is_head: bool, seconds: float) -> None:
        self.status = 0
        self.headers: Headers = []
        self.has_begun = self.is_asked = self.is_keepable = False
        self._connection: Connection | None = connection
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._is_head = is_head
        self._seconds = seconds
        self._head_bytes = 0
        self._ends_with_connection = False
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._is_paused = False
        self._is_done = False
        self._failure: str | None = None

    def take(self, data: bytes) -> None:
        """Take bytes of the connection."""
        parser = self._parser
        if parser is None:
            self.is_keepable = False
            return
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.lost(error)
        if self._waiting_bytes > MOST_WAITING_BYTES and not self._is_paused and self._connection is not None:
            self._is_paused = True
            self._connection.pause()

    def lost(self, error: Exception | None) -> None:
        """End with the connection: where nothing else says how long a body is, that is its end."""
        self.is_keepable = False
        self._parser = None
        if self._is_done:
            return
        if error is None and self.has_begun and self._ends_with_connection:
            self._is_done = True
        else:
            self._failure = type(error).__name__ if error is not None else "the provider closed the connection"

    async def begun(self) -> None:
        """Wait for the head."""
        while not self.has_begun:
            if self._failure is not None or self._connection is None:
                raise CutOffError(self._failure)
            await self._connection.wait(self._seconds)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes; raise CutOffError where its end is missing."""
        while self._connection is not None:
            if self._waiting:
                piece = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
                self._waiting.clear()
                self._waiting_bytes = 0
                if self._is_paused:
                    self._is_paused = False
                    self._connection.go_on()
                yield piece
            elif self._is_done:
                self.close()
            elif self._failure is not None:
                raise CutOffError(self._failure)
            else:
                try:
                    await self._connection.wait(self._seconds)
                except TimeoutError:
                    raise CutOffError("nothing came") from None

    def close(self) -> None:
        """End the call: its connection is kept where the answer has come to its end."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if self._is_paused:
                connection.go_on()
            self._parser = None
            connection.ended(is_keepable=self.is_keepable and self._is_done and self.is_asked)

    def on_message_begin(self) -> None:
        """Refuse a second answer."""
        if self._is_done:
            raise CutOffError("two answers")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those after the body nobody is waiting for."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MOST_HEAD_BYTES:
            raise CutOffError("too many headers")
        if not self.has_begun:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Begin with the body, unless what came only says that an answer will."""
        parser = self._parser
        if parser is None:
            return
        status = parser.get_status_code()
        if status == _SWITCHING:
            raise CutOffError("another protocol")
        if status < _LEAST_FINAL:
            self.headers.clear()
            return
        self.status, self.has_begun = status, True
        self.is_keepable = parser.should_keep_alive() and not self._is_head
        coded = [value for name, value in self.headers if name == b"transfer-encoding"]
        is_sized = (
            coded[-1].lower().endswith(b"chunked")
            if coded
            else any(name == b"content-length" for name, _ in self.headers)
        )
        self._ends_with_connection = not is_sized
        self._is_done = self._is_head

    def on_body(self, body: bytes) -> None:
        """Keep a piece until somebody takes it."""
        self._waiting.append(body)
        self._waiting_bytes += len(body)

    def on_message_complete(self) -> None:
        """Come to the end."""
        self._is_done = self.has_begun


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
