"""When keys were last used: remembered here, written in batches off the request path."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from runtime.log import fault
from store.tenants import api_keys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    RunWithoutTenant = Callable[..., Awaitable[Any]]

log = structlog.get_logger()

INTERVAL_SECONDS: Final = 60.0
"""Seconds that uses are collected before one statement writes them."""
FLUSH_SECONDS: Final = 3.0
"""Seconds that a process which ends gives the database to take the last batch."""
LIMIT: Final = 10_000
"""Keys in a batch; those that are too many are noted when they are used again."""


class LastUsed:
    """Collects when keys were last used and writes it from time to time.

    What is lost, with the process or while the database is away, the next use tells again.
    """

    def __init__(self, run_without_tenant: RunWithoutTenant) -> None:
        self._run_without_tenant = run_without_tenant
        self._used: dict[UUID, float] = {}
        self._ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._write_batches())

    async def stop(self) -> None:
        """Write what is collected and end."""
        self._ending.set()
        if self._task is not None:
            with suppress(TimeoutError):
                # Past the time the task is cancelled: a database that hangs holds up no shutdown.
                await asyncio.wait_for(self._task, FLUSH_SECONDS)

    def note(self, key_id: UUID) -> None:
        """Remember that a key was used just now; called on the request path, so nothing is waited for."""
        if len(self._used) < LIMIT or key_id in self._used:
            self._used[key_id] = time.monotonic()

    async def _write_batches(self) -> None:
        ending = False
        while not ending:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), INTERVAL_SECONDS)
            ending = self._ending.is_set()
            if self._used:
                await self._write()

    async def _write(self) -> None:
        batch, self._used = self._used, {}
        now = time.monotonic()
        try:
            await self._run_without_tenant(
                partial(api_keys.note_uses, seconds_ago={key: now - at for key, at in batch.items()})
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the next batch reports the same again
            self._used = batch | self._used
            log.warning("key_uses.not_written", count=len(batch), error=fault(error))
