"""The body of a request: as much as may be, as long as it comes, and without the encoding that it came in."""

from __future__ import annotations

import asyncio
import zlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from gateway.doors import DoorError
from gateway.headers import CODING, is_bypassed
from runtime.http.body_events import next_of_body
from runtime.http.pace import GRACE_SECONDS, BodyPace
from runtime.threads import run_aside

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from litestar.types import Receive

    from runtime.held_bytes import HeldBytes

_READ_HERE: Final = frozenset({b"gzip", b"x-gzip", b"deflate"})
_EITHER: Final = 32 + zlib.MAX_WBITS
"""Of zlib: whether a body is gzip's or zlib's, its head says."""


class GoneError(Exception):
    """A client that sends or takes nothing any more."""


async def read_body(
    receive: Receive, headers: Mapping[bytes, bytes], hold: HeldBytes, *, most: int, seconds: float
) -> tuple[bytes, bool]:
    """Return a body of at most `most` bytes, and whether it came in an encoding that it has no longer.

    Raises DoorError for one too large, ProblemError for one that comes too slowly or of which nothing comes for
    `seconds`, and while too much is under way, and GoneError for a client that goes away.
    """
    too_large = DoorError(413, f"A request has at most {most:,} bytes here.")
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > most:
        raise too_large
    parts: list[bytes] = []
    size, more, pace = 0, True, BodyPace(min(seconds, GRACE_SECONDS))
    while more:
        event = await next_of_body(receive, hold, pace)
        if event["type"] != "http.request":
            raise GoneError
        part = event.get("body", b"")
        parts.append(part)
        size += len(part)
        if size > most:
            raise too_large
        more = event.get("more_body", False)
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    if CODING not in headers or is_bypassed(headers):
        return body, False
    decoded = await run_aside(len(body), plain, body, headers[CODING], most)
    if decoded is None:
        return body, False
    if len(decoded) > most:
        raise too_large
    hold.take(len(decoded))
    return decoded, True


@asynccontextmanager
async def until_gone(receive: Receive) -> AsyncIterator[None]:
    """Break the block off, and end with it, when the client goes away."""
    task, waits = asyncio.current_task(), True

    def break_off(watch: asyncio.Task[None]) -> None:
        if waits and task is not None and not watch.cancelled():
            task.cancel()

    watch = asyncio.create_task(_gone(receive))
    watch.add_done_callback(break_off)
    try:
        yield
    except asyncio.CancelledError:
        # Unless somebody else ends the request.
        if task is None or not watch.done() or watch.cancelled() or task.uncancel():
            raise
    finally:
        waits = False
        watch.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def plain(body: bytes, encoding: bytes, most: int) -> bytes | None:
    """Return a body without its encoding; None for none, for one that is not read here, and for what is not in it.

    No more than `most` bytes and one come of it, whatever it holds.
    """
    if encoding.strip().lower() not in _READ_HERE:
        return None
    decompress = zlib.decompressobj(_EITHER)
    try:
        decoded = decompress.decompress(body, most + 1)
    except zlib.error:
        return None
    return decoded if len(decoded) > most or (decompress.eof and not decompress.unused_data) else None
