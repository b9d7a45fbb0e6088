"""The sweep: finds due checks whose wake-up was lost, runs that no worker has, and webhooks to be sent.

It also removes rows past their retention. It is the body of the periodic tasks that beat sends.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
from sqlalchemy.exc import DBAPIError

from compaction.steps.runs import RunReason, RunState
from runtime.broker import (
    BATCH,
    CHECK_TASK,
    CHECKS,
    HOUSEKEEPING_TASK,
    LATER,
    QUEUES,
    RUN_TASK,
    SHARE,
    SUMMARIES,
    SWEEP_TASK,
    USAGES_TASK,
    WEBHOOKS_TASK,
    QueueDepths,
)
from runtime.log import fault
from runtime.tracing import header, here, span
from store.conversations import conversations
from store.operations import periodic_locks
from store.runs import runs
from store.runs import stranded as stranded_runs
from worker.database import Database
from worker.metrics import METRICS
from worker.sweeping.cold import promote_cold
from worker.sweeping.errands import ERRANDS
from worker.sweeping.housekeeping import Housekeeper
from worker.sweeping.reckoning import Reckoning
from worker.sweeping.resending import Sent
from worker.sweeping.resuming import Resuming

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from uuid import UUID

    from celery import Celery

    from runtime.settings import Settings
    from store.conversations.conversations import OverdueCheck
    from store.runs.stranded import Stranded
    from worker.sweeping.resending import Errand

log = structlog.get_logger()

CHECKS_LIMIT: Final = 10_000
"""Due checks that one sweep takes on; the next has the rest."""
LOCK_TIMEOUT: Final = "1s"
"""Longest wait for what somebody has locked: the next sweep comes to it again, and everything else is waiting, too."""
LIMIT: Final = 1_000
"""Runs, and rows of one errand, that one sweep takes on."""


class Sweeper:
    """Wakes workers for what Postgres says is left to do."""

    def __init__(self, settings: Settings, app: Celery) -> None:
        self._settings = settings
        self._app = app
        self._database = Database(settings, "beat", lock_timeout=LOCK_TIMEOUT)
        # Connections of their own: a lock is held while the parts use the others.
        self._locks = Database(settings, "sweeper-lock")
        self._began_at: dict[str, float] = {}
        self._depths = QueueDepths(settings)
        self._housekeeper = Housekeeper(settings, self._database)
        self._resuming = Resuming(settings, self._database)
        self._sent_checks = Sent()
        # A run that was offered is not stranded for a while, and the same one all the time.
        self._sent_runs = {queue: Sent(absent_count=True) for queue in QUEUES}
        self._parts: dict[str, Callable[[], int]] = {
            "waiting": self._waiting,
            "cold": partial(promote_cold, self._database),
            "runs": self._runs,
            "checks": self._checks,
            **{errand.name: partial(self._errand, errand, Sent()) for errand in ERRANDS},
            "usages": Reckoning(settings, self._database).reckon,
            "housekeeping": self._housekeeping,
        }
        self._tasks = {
            SWEEP_TASK: ("waiting", "cold", "runs", "checks"),
            WEBHOOKS_TASK: tuple(errand.name for errand in ERRANDS),
            USAGES_TASK: ("usages",),
            HOUSEKEEPING_TASK: ("housekeeping",),
        }

    def begin_counters(self) -> None:
        """Count each part from 0: an alert sees the first failure as a change."""
        METRICS.name_parts(self._parts)

    def carry_out(self, task: str) -> None:
        """Carry out a periodic task, unless another process is at it or this one has just done it.

        Beat sends one an interval, and several beats may. Those that piled up while no worker took them are done once.
        """
        now = time.monotonic()
        if now - self._began_at.get(task, -math.inf) < self._settings.sweep_interval_seconds / 2:
            return
        self._began_at[task] = now
        with self._locks.transaction(None) as connection:
            if periodic_locks.try_lock(connection, task):
                self.sweep(*self._tasks[task])

    def close(self) -> None:
        """Close every connection."""
        self._database.close()
        self._locks.close()
        self._depths.close()

    def sweep(self, *names: str) -> int:
        """Carry out parts, all by default; return how much there was to send messages for.

        What fails is logged, and the next sweep tries again.
        """
        started = time.monotonic()
        counts: dict[str, int] = {}
        failed: list[str] = []
        with span("sweep") as traced:
            for name in names or self._parts:
                try:
                    counts[name] = self._parts[name]()
                except Exception as error:  # noqa: BLE001 - a sweeper that ends is worse than one that complains
                    failed.append(name)
                    METRICS.sweep_failed(name)
                    log.warning("sweep.failed", part=name, error=fault(error))
                else:
                    METRICS.woke(name, counts[name])
            traced.set(**counts, failed=",".join(failed) or None)
        METRICS.swept(time.monotonic() - started)
        return sum(counts.values())

    def _checks(self) -> int:
        with self._database.transaction(None) as connection:
            overdue = conversations.overdue_checks(connection, self._settings.check_overdue_seconds, CHECKS_LIMIT)
        unsent = self._sent_checks.unsent(overdue, _check, queue_is_empty=bool(overdue) and self._is_empty(CHECKS))
        # Tenants took turns; what one has beyond its share lets the wake-ups that the API sends go first.
        urgent = [check for check in unsent if check.nth <= SHARE]
        rest = [check for check in unsent if check.nth > SHARE]
        for checks, priority in ((urgent, 0), (rest, LATER)):
            for start in range(0, len(checks), BATCH):
                self._send_checks(checks[start : start + BATCH], priority)
        if unsent:
            log.info("sweep.checks", count=len(unsent))
        return len(unsent)

    def _send_checks(self, batch: Sequence[OverdueCheck], priority: int) -> None:
        ids = [str(check.conversation_id) for check in batch]
        self._send(CHECK_TASK, [ids], CHECKS, ids, priority)
        self._sent_checks.remember(batch, _check)

    def _runs(self) -> int:
        settings = self._settings
        with self._database.transaction(None) as connection:
            stranded = stranded_runs.stranded(
                connection, settings.run_overdue_seconds, LIMIT, settings.summaries_per_tenant
            )
        lost = [run for run in stranded if run.expired or run.attempts >= settings.max_attempts]
        lost += self._unclaimed([run for run in stranded if run not in lost])
        requeued = sum(map(self._requeued, lost))
        if requeued:
            log.info("sweep.runs", count=requeued)
        return requeued

    def _requeued(self, run: Stranded) -> bool:
        try:
            self._requeue(run)
        except DBAPIError as error:
            # One whose conversation somebody has locked holds up no others.
            if error.connection_invalidated:
                raise
            log.warning("run.not_requeued", run_id=str(run.run_id), error=fault(error))
            return False
        return True

    def _unclaimed(self, waiting: Sequence[Stranded]) -> list[Stranded]:
        """Return the queued runs that are to be offered again."""
        unclaimed: list[Stranded] = []
        for queue in QUEUES:
            runs_there = [run for run in waiting if run.queue == queue]
            is_empty = bool(runs_there) and self._is_empty(queue)
            unclaimed += self._sent_runs[queue].unsent(runs_there, _run, queue_is_empty=is_empty)
        return unclaimed

    def _requeue(self, run: Stranded) -> None:
        with self._database.transaction(run.tenant_id) as connection:
            queue = runs.requeue(connection, run.run_id, self._settings.max_attempts)
        if queue is not None and run.expired:
            METRICS.lease_expired()
        if queue == RunState.DEAD:
            METRICS.run_ended(RunState.DEAD, RunReason.ATTEMPTS_EXHAUSTED)
            log.error("run.dead", run_id=str(run.run_id))
        elif queue is not None:
            self._send_one(RUN_TASK, run.tenant_id, run.run_id, queue)
            self._sent_runs[queue].remember([run], _run)

    def _errand(self, errand: Errand, sent: Sent) -> int:
        with self._database.transaction(None) as connection:
            due = errand.due(connection, LIMIT)
        unsent = sent.unsent(due, _row, queue_is_empty=bool(due) and self._is_empty(SUMMARIES))
        for row in unsent:
            self._send_one(errand.task, row[1], row[0], SUMMARIES)
            sent.remember([row], _row)
        return len(unsent)

    def _waiting(self) -> int:
        """Queue the summaries that another day's budget allows."""
        return sum(self._resume(*each) for each in self._resuming.due())

    def _resume(self, tenant_id: UUID, run_id: UUID) -> int:
        self._send_one(RUN_TASK, tenant_id, run_id, SUMMARIES)
        return 1

    def _housekeeping(self) -> int:
        self._housekeeper.round()
        return 0

    def _send_one(self, task: str, tenant_id: UUID, identifier: UUID, queue: str) -> None:
        self._send(task, [str(tenant_id), str(identifier)], queue, [str(identifier)])

    def _send(self, task: str, args: Sequence[Any], queue: str, about: Sequence[str], priority: int = 0) -> None:
        """Send a task, and with it which sweep it comes from; `about` are the ids of what it is to look at."""
        place = here()
        headers = header(dict.fromkeys(about, place) if place else {})
        self._app.send_task(task, args=args, queue=queue, priority=priority, headers=headers)

    def _is_empty(self, queue: str) -> bool:
        return self._depths.of(queue) == 0


def _check(check: OverdueCheck) -> tuple[UUID, Hashable]:
    return check.conversation_id, check.due_at


def _run(run: Stranded) -> tuple[UUID, Hashable]:
    return run.run_id, None


def _row(row: tuple[UUID, UUID, Hashable]) -> tuple[UUID, Hashable]:
    return row[0], row[2]
