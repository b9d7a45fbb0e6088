"""An answer of a provider: its status and headers, and its body as it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.doors import Headers


class CutOffError(Exception):
    """An answer that ended before its end, or that is none."""


class ProviderAnswer(Protocol):
    """An answer whose body is still to come. Whoever has one closes it."""

    status: int
    headers: Headers
    """Their names in lower case."""

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes, in the encoding that it comes in; raise CutOffError where its end is missing."""

    def close(self) -> None:
        """End the call, if it has not ended by itself. Twice is once."""


class ReadAnswer:
    """An answer that was read before, with what is still to come of it."""

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self._body = body

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield what was read."""
        yield self._body

    def close(self) -> None:
        """Nothing is open any more."""


def encoding_of(answer: ProviderAnswer) -> bytes:
    """Return the encoding of a body."""
    return dict(answer.headers).get(b"content-encoding", b"identity").strip().lower()


async def read_whole(answer: ProviderAnswer) -> bytes:
    """Return a body, as it came."""
    try:
        return b"".join([piece async for piece in answer.pieces()])
    finally:
        answer.close()
