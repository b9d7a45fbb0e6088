"""What assemblies contained: reported in the log and the metrics, and stored off the request path."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from actions.background.batches import Batches
from runtime import ids
from runtime.log import fault
from store.conversations import assemblies
from store.conversations.assemblies import AssemblyRecord, Dropped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.background.wakeups import Wakeups
    from actions.monitoring.metrics import Metrics

    Run = Callable[..., Awaitable[Any]]

log = structlog.get_logger()

LIMIT: Final = 5_000
"""Conversations in a batch; more than that many in a second lose their oldest."""


class _Waiting(NamedTuple):
    record: AssemblyRecord
    dropped: Dropped | None
    """What the guard had to drop something of, in this assembly or one before it in the batch."""


class Assemblies(Batches):
    """Collects the newest assembly of each conversation and writes them from time to time.

    What is lost, with the process or while the database is away, loses nothing that the next assembly does not tell
    again.
    """

    def __init__(self, run: Run, wakeups: Wakeups, metrics: Metrics) -> None:
        super().__init__()
        self._run = run
        self._wakeups = wakeups
        self._metrics = metrics
        self._waiting: dict[UUID, _Waiting] = {}

    def add(self, record: AssemblyRecord, request_id: UUID) -> None:
        """Tell of an assembly and keep it for the next batch; called on the request path, so nothing is waited for."""
        self._metrics.assembled(record)
        _tell(record)
        before = self._waiting.pop(record.conversation_id, None)
        dropped = before.dropped if before else None
        if record.history_dropped:
            dropped = Dropped(record.snapshot_version, request_id)
        if len(self._waiting) >= LIMIT:
            self._waiting.pop(next(iter(self._waiting)))
            self._metrics.assemblies_lost.inc()
        self._waiting[record.conversation_id] = _Waiting(record, dropped)
        self._filled.set()

    async def _write(self) -> None:
        batch, self._waiting = self._waiting, {}
        by_tenant: dict[UUID, list[_Waiting]] = defaultdict(list)
        for waiting in batch.values():
            by_tenant[waiting.record.tenant_id].append(waiting)
        for tenant_id, each in by_tenant.items():
            dropped = {
                waiting.record.conversation_id: waiting.dropped for waiting in each if waiting.dropped is not None
            }
            try:
                lifted = await self._run(tenant_id, _keep, [waiting.record for waiting in each], dropped)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next assembly reports the same again
                self._metrics.assemblies_lost.inc(len(each))
                log.warning("assemblies.lost", count=len(each), error=fault(error))
                continue
            for conversation_id in lifted:
                log.info("restore.hold_lifted", conversation_id=str(conversation_id))
                self._wakeups.add(conversation_id, tenant_id)


def _keep(connection: Connection, records: Sequence[AssemblyRecord], dropped: Mapping[UUID, Dropped]) -> list[UUID]:
    assemblies.remember(connection, records)
    return assemblies.lift_holds(connection, dropped) if dropped else []


def _tell(record: AssemblyRecord) -> None:
    """Log an assembly that had to drop something or is over its budget: ids and counts, never content."""
    if not (record.over or record.history_dropped or record.blocks_shortened):
        return
    log.warning(
        "assembly.over_budget" if record.over else "assembly.dropped",
        conversation_id=ids.external("conv", record.conversation_id),
        call=record.call,
        snapshot_version=record.snapshot_version,
        total=record.total,
        budget=record.total_token_budget,
        reserved_output=record.reserved_output_tokens,
        over=record.over,
        exchanges_dropped=record.exchanges_dropped,
        exchanges_kept=record.exchanges_kept,
        rounds_dropped=record.rounds_dropped,
        responses_truncated=record.responses_truncated,
        blocks_shortened=record.blocks_shortened,
    )
