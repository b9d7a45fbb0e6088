"""What is collected on the request path and written in batches off it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Final

INTERVAL_SECONDS: Final = 1.0
"""Seconds that a batch is collected before one statement a tenant writes it."""
FLUSH_SECONDS: Final = 3.0
"""Seconds that a process which ends gives the database to take the last batch."""


class Batches(ABC):
    """Writes what is waiting from time to time, and once more at the end."""

    def __init__(self) -> None:
        self._filled = asyncio.Event()
        self._ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._write_batches())

    async def stop(self) -> None:
        """Write what is collected and end."""
        self._ending.set()
        self._filled.set()
        if self._task is not None:
            with suppress(TimeoutError):
                # Past the time the task is cancelled: a database that hangs holds up no shutdown.
                await asyncio.wait_for(self._task, FLUSH_SECONDS)

    async def _write_batches(self) -> None:
        while self._filled.is_set() or not self._ending.is_set():
            await self._filled.wait()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), INTERVAL_SECONDS)
            self._filled.clear()
            await self._write()

    @abstractmethod
    async def _write(self) -> None:
        """Write what is waiting, if anything is."""
