"""Turns that could not be stored at once, until a later request of their client has brought them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import structlog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.metrics import GatewayMetrics

GRACE_SECONDS: Final = 600.0
"""Seconds that a client has to bring a turn again: a person reads, and thinks, before the next request."""
LOOK_SECONDS: Final = 5.0
"""Seconds between two looks at the oldest turns."""
MOST_TURNS: Final = 10_000
"""Turns that are remembered; of more than that the oldest count as lost unseen."""
LOOKS_AT_ONCE: Final = 100
"""Turns that one look asks the database about."""
log = structlog.get_logger()


class UnstoredTurn(NamedTuple):
    """A turn that could not be stored, and the query that tells whether it has been stored since."""

    until: float
    """When it counts as lost, by the monotonic clock."""
    is_stored: Callable[[], Awaitable[bool]]


class UnstoredTurns:
    """Counts a turn as resent once it is stored, and as lost if it is not within `grace` seconds.

    The database is asked, because another gateway process may have been sent the next request.
    """

    def __init__(self, metrics: GatewayMetrics, *, grace: float = GRACE_SECONDS, pause: float = LOOK_SECONDS) -> None:
        self._metrics = metrics
        self._grace = grace
        self._pause = pause
        self._waiting: deque[UnstoredTurn] = deque()
        self._looking: asyncio.Task[None] | None = None

    def add(self, is_stored: Callable[[], Awaitable[bool]]) -> None:
        """Remember a turn, and begin to look for it."""
        if len(self._waiting) >= MOST_TURNS:
            self._waiting.popleft()
            self._count("lost")
        self._waiting.append(UnstoredTurn(time.monotonic() + self._grace, is_stored))
        self._metrics.unstored_turns.inc()
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_until_settled())

    async def stop(self) -> None:
        """Look once more, at no more turns than one look takes, and count what is not stored as lost."""
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking
        await self._look()
        while self._waiting:
            self._waiting.popleft()
            self._count("lost")

    async def _look_until_settled(self) -> None:
        while self._waiting:
            await asyncio.sleep(self._pause)
            await self._look()
        self._looking = None

    async def _look(self) -> None:
        """Ask about the oldest turns. While the database does not answer, none of them is counted."""
        for _ in range(min(LOOKS_AT_ONCE, len(self._waiting))):
            turn = self._waiting[0]
            try:
                is_stored = await turn.is_stored()
            except Exception:  # noqa: BLE001 - the database is away, or whatever else keeps it from answering
                return
            if not self._waiting or self._waiting[0] is not turn:
                # MOST_TURNS was reached while the database was asked.
                continue
            self._waiting.popleft()
            if is_stored:
                self._count("resent")
            elif time.monotonic() >= turn.until:
                self._count("lost")
            else:
                self._waiting.append(turn)

    def _count(self, state: Literal["resent", "lost"]) -> None:
        self._metrics.turns[state].inc()
        self._metrics.unstored_turns.dec()
        if state == "lost":
            log.warning("gateway.turn_lost")
