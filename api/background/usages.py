"""What providers counted for the calls that turns came from: collected, and written in batches off the request path."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import structlog

from runtime.log import fault
from store.conversations import usages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    from api.monitoring.metrics import Metrics
    from store.conversations.usages import UsageRecord

    Run = Callable[..., Awaitable[Any]]

log = structlog.get_logger()

INTERVAL_SECONDS: Final = 1.0
"""Seconds that usages are collected before one statement a tenant writes them."""
FLUSH_SECONDS: Final = 3.0
"""Seconds that a process which ends gives the database to take the last batch."""
LIMIT: Final = 20_000
"""Usages in a batch; of more than that many in a second the newest are lost."""


class Usages:
    """Collects usages and writes them from time to time. What is lost is a gap in figures, and nothing else."""

    def __init__(self, run: Run, metrics: Metrics) -> None:
        self._run = run
        self._metrics = metrics
        self._waiting: list[UsageRecord] = []
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

    def add(self, record: UsageRecord) -> None:
        """Keep a usage for the next batch; called on the request path, so nothing is waited for."""
        if len(self._waiting) >= LIMIT:
            self._metrics.usages_lost.inc()
            return
        self._waiting.append(record)
        self._filled.set()

    async def _write_batches(self) -> None:
        while self._waiting or not self._ending.is_set():
            await self._filled.wait()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), INTERVAL_SECONDS)
            self._filled.clear()
            await self._write()

    async def _write(self) -> None:
        batch, self._waiting = self._waiting, []
        by_tenant: dict[UUID, list[UsageRecord]] = defaultdict(list)
        for record in batch:
            by_tenant[record.tenant_id].append(record)
        for tenant_id, records in by_tenant.items():
            try:
                await self._run(tenant_id, usages.remember, records)
            except Exception as error:  # noqa: BLE001 - whatever it is, turns go on
                self._metrics.usages_lost.inc(len(records))
                log.warning("usages.lost", count=len(records), error=fault(error))
