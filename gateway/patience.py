"""How long a request waits for what is ours: a moment, and while that is known to be away not at all."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from api.http.problems import ProblemError
from runtime.log import fault

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")
log = structlog.get_logger()

FAILURES: Final = 3
"""Times in a row that the database kept requests waiting before it counts as away: one may be this process's fault."""
PAUSE_SECONDS: Final = 1.0
"""Seconds for which the database is then left alone; after that one request tries whether it is back."""


class AwayError(Exception):
    """The database is away, or slow."""


class Patience:
    """Asks the database, and tells when it is away. What is given up on goes on: its connection is not lost."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._failures = 0
        self._away_until = 0.0
        self._left: set[asyncio.Task[object]] = set()

    async def within(self, asking: Coroutine[object, object, T], *, seconds: float | None = None) -> T:
        """Return what is asked for; raise AwayError if it does not come in time, or cannot be had."""
        now = time.monotonic()
        if now < self._away_until:
            asking.close()
            raise AwayError
        if self._failures >= FAILURES:
            # This request tries; those that come meanwhile do not wait for the same.
            self._away_until = now + PAUSE_SECONDS
        task = asyncio.ensure_future(asking)
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds or self._seconds)
        except asyncio.CancelledError:
            self._leave(task)
            raise
        if not done:
            self._leave(task)
            self._failed("slow")
            raise AwayError
        try:
            result = task.result()
        except ProblemError:
            raise
        except Exception as error:
            self._failed(fault(error))
            raise AwayError from error
        self._failures, self._away_until = 0, 0.0
        return result

    async def close(self) -> None:
        """End what was given up on."""
        for task in self._left:
            task.cancel()
        await asyncio.gather(*self._left, return_exceptions=True)

    def _leave(self, task: asyncio.Task[T]) -> None:
        self._left.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[T]) -> None:
        self._left.discard(task)
        if not task.cancelled():
            task.exception()

    def _failed(self, why: str) -> None:
        self._failures += 1
        if self._failures >= FAILURES:
            self._away_until = time.monotonic() + PAUSE_SECONDS
        if self._failures == FAILURES:
            log.warning("gateway.database_away", why=why)
