"""Who may have a connection next: calls wait as long as others end, and are refused where none does."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import TimeoutError as PoolTimeoutError

if TYPE_CHECKING:
    from types import TracebackType

MOST_SECONDS: Final = 5.0
"""Seconds that a call waits for its turn in all. Each that waits longer is one more whose caller may have gone."""


class Admission:
    """Lets so many calls go on at a time, in the order in which they come; `async with` one of its turns.

    A burst is served, however long its line: connections come free all the while. Of a database that does not answer
    nobody has to wait for long.
    """

    def __init__(self, at_once: int, *, patience: float, most: float = MOST_SECONDS) -> None:
        """Refuse a call after `patience` seconds in which no other has ended, and after `most` in all."""
        self._free = at_once
        self._patience = patience
        self._most = max(patience, most)
        self._ended = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        """Wait for a turn. Raises the error of a pool that has no connection where it does not come in time."""
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await self._come(turn)
        except BaseException:
            if not turn.cancel():
                # It came in the moment in which the caller went away.
                self._end()
            raise

    async def _come(self, turn: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        came = loop.time()
        while not turn.done():
            until = min(came + self._most, max(came, self._ended) + self._patience)
            if until <= loop.time():
                raise PoolTimeoutError("no connection came free")
            await asyncio.wait((turn,), timeout=until - loop.time())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the next go on."""
        self._ended = asyncio.get_running_loop().time()
        self._end()

    def _end(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
