"""Bytes that the requests of one process have in memory: bodies as they come, and what is read to answer them.

Reading a body takes up to ten times its bytes for a moment: Python keeps four bytes for each character of a text that
has one emoji, and parsing has such a text twice.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from api.http.problems import RETRY_AFTER_SECONDS, ProblemError

if TYPE_CHECKING:
    from litestar.types import Message, Receive, Send

HOLD: Final = "bytes_under_way"
"""Where a request's state has its `HeldBytes`."""
SMALL_BYTES: Final = 256 * 1024
"""Bytes up to which a request is an ordinary one."""
KEPT_FREE: Final = 8 * 1024 * 1024
"""Bytes that only ordinary requests may take: large ones never keep them waiting."""
PIECE_BYTES: Final = 256 * 1024
"""Bytes of an answer that are written at a time; the next ones wait until the client has read most of them."""
PIECE_SECONDS: Final = 60.0
"""Seconds in which the next piece of a body has to come: what came of it is not held for whoever sends no more."""


class BusyError(ProblemError):
    """As much is under way as may be."""

    def __init__(self) -> None:
        super().__init__(
            503,
            "unavailable",
            "As many bytes are under way here as may be at a time: try again in a moment.",
            headers={"retry-after": str(RETRY_AFTER_SECONDS)},
        )


class BytesUnderWay:
    """How much of `most` bytes the requests of this process hold. Nobody waits for it: what is too much is refused.

    One that nobody shares the process with may have more.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0


class HeldBytes:
    """What one request holds, until it has been answered; nothing at first."""

    __slots__ = ("_of", "size")

    def __init__(self, of: BytesUnderWay) -> None:
        self._of = of
        self.size = 0

    def take(self, size: int) -> None:
        """Take so many bytes; raise BusyError if there are not as many left."""
        of, held = self._of, self.size + size
        if of.taken > self.size and of.taken + size > of.most + (KEPT_FREE if held <= SMALL_BYTES else 0):
            raise BusyError
        of.taken += size
        self.size = held

    def give_back(self) -> None:
        """Give back all of it."""
        self._of.taken -= self.size
        self.size = 0


async def piece_of(receive: Receive) -> Any:
    """Return the next event of a request whose body has not ended; raise the problem that none comes."""
    try:
        async with asyncio.timeout(PIECE_SECONDS):
            return await receive()
    except TimeoutError:
        detail = f"Nothing came of the body for {PIECE_SECONDS:g} seconds."
        raise ProblemError(408, "body_too_slow", detail, headers={"connection": "close"}) from None


def counted(receive: Receive, hold: HeldBytes) -> Receive:
    """Return what receives the events of a request and takes what they have of its body."""
    more = True

    async def receive_and_take() -> Any:
        nonlocal more
        # After a body there is only its client's end to wait for, however long that takes.
        event: Any = await (piece_of(receive) if more else receive())
        if event["type"] == "http.request":
            more = event["more_body"]
            hold.take(len(event["body"]))
        return event

    return receive_and_take


def in_pieces(send: Send) -> Send:
    """Return what sends a large body in pieces: until its client has read most of it, its request is under way."""

    async def send_pieces(message: Message) -> None:
        if message["type"] != "http.response.body" or len(message["body"]) <= PIECE_BYTES:
            return await send(message)
        body, more = message["body"], message["more_body"]
        for start in range(0, len(body), PIECE_BYTES):
            end = start + PIECE_BYTES
            piece = body[start:end]
            await send({"type": "http.response.body", "body": piece, "more_body": more or end < len(body)})
        return None

    return send_pieces
