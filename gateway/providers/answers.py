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

    def __init__(self, answer: ProviderAnswer, body: bytes, rest: AsyncIterator[bytes] | None) -> None:
        self.status = answer.status
        self.headers = answer.headers
        self.body = body
        """What was read, as it came."""
        self._answer = answer
        self._rest = rest

    @property
    def is_whole(self) -> bool:
        """Tell whether nothing is to come any more."""
        return self._rest is None

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield what was read, and the rest as it comes."""
        yield self.body
        if self._rest is not None:
            async for piece in self._rest:
                yield piece

    def close(self) -> None:
        """End the call."""
        self._answer.close()


def encoding_of(answer: ProviderAnswer) -> bytes:
    """Return the encoding of a body."""
    return dict(answer.headers).get(b"content-encoding", b"identity").strip().lower()


async def read_within(answer: ProviderAnswer, most: int) -> ReadAnswer:
    """Read a body as it comes, one of more than `most` bytes no further than that."""
    pieces = answer.pieces()
    read: list[bytes] = []
    size = 0
    try:
        async for piece in pieces:
            read.append(piece)
            size += len(piece)
            if size > most:
                return ReadAnswer(answer, b"".join(read), pieces)
    except BaseException:
        answer.close()
        raise
    answer.close()
    return ReadAnswer(answer, b"".join(read), None)
