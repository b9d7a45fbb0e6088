"""What providers counted for the calls that turns came from: collected, and written in batches off the request path."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import structlog

from actions.background.batches import Batches
from runtime.log import fault
from store.conversations import usages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    from actions.monitoring.metrics import Metrics
    from store.conversations.usages import UsageRecord

    Run = Callable[..., Awaitable[Any]]

log = structlog.get_logger()

LIMIT: Final = 20_000
"""Usages in a batch; of more than that many in a second the newest are lost."""


class Usages(Batches):
    """Collects usages and writes them from time to time. What is lost is a gap in figures, and nothing else."""

    def __init__(self, run: Run, metrics: Metrics) -> None:
        super().__init__()
        self._run = run
        self._metrics = metrics
        self._waiting: list[UsageRecord] = []

    def add(self, record: UsageRecord) -> None:
        """Keep a usage for the next batch; called on the request path, so nothing is waited for."""
        if len(self._waiting) >= LIMIT:
            self._metrics.usages_lost.inc()
            return
        self._waiting.append(record)
        self._filled.set()

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
