"""An answer of a provider whose pieces are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.doors import Headers


class GivenAnswer:
    """A `ProviderAnswer` of these pieces, with the status 200."""

    def __init__(self, headers: Headers, *pieces: bytes) -> None:
        self.status = 200
        self.headers = headers
        self.is_closed = False
        self._pieces = pieces

    async def pieces(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece

    def close(self) -> None:
        self.is_closed = True
