"""The installation as one process sees it: what is left to do, who is there to do it, how long the queues are."""

from __future__ import annotations

import asyncio
import time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import text

from actions.background.gateway_outcomes import Outcomes
from compaction.steps.runs import RunState
from migrations.revisions import is_enough
from runtime.broker import QUEUES
from runtime.database_faults import database_fault
from runtime.log import fault
from store.operations import processes
from store.operations.processes import Backlog
from store.runs import backlog
from store.runs.backlog import Asked, Kind, Waits
from store.tenants import budgets
from store.tenants.budgets import Spending

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from prometheus_client import Metric
    from sqlalchemy import Connection

    from actions.background.wakeups import Wakeups
    from runtime.database_faults import DatabaseFault
    from runtime.queues import Queue
    from store.operations.processes import Process

log = structlog.get_logger()

CACHE_SECONDS: Final = 5.0
"""Seconds for which what was read for one scrape answers others."""
LOOK_SECONDS: Final = 2.0
"""Seconds that the database, or the broker, may take before it counts as away."""
FAULT_SECONDS: Final = 60.0
"""Seconds for which readiness names a fault of writes after a request met it."""
SUM_SECONDS: Final = 5.0
"""The same for sums over all tenants and days, which grow with the years."""
SUMS_SHARE: Final = 20
"""Times as long as it took to read them they answer others: every few seconds they would keep a core busy."""
BEAT: Final = "beat"

State = str
"""`ok`, `unavailable`, `behind`, `missing`, `unknown`, or the name of a fault (`runtime.database_faults`)."""


class Readiness(NamedTuple):
    """Whether requests can be served, and the state of every part."""

    status: Literal["ok", "degraded", "unavailable"]
    parts: Mapping[str, State]


class Seen(NamedTuple):
    """What the database and the broker said; None where they did not answer, so that no old number is shown for it."""

    backlog: Backlog | None
    spending: Spending | None
    waiting: Mapping[Kind, Waits] | None
    asked: Asked | None
    alive: Sequence[Process]
    depths: Mapping[str, int] | None
    gateways: Outcomes | None = None

    def families(self) -> list[Metric]:
        """Return it as gauges."""
        return list(_Gauges(self).collect())


class Operations:
    """Looks at the installation for `/readyz` and for `/metrics`.

    `run_without_tenant` runs a query of the store in a transaction for no tenant.
    """

    def __init__(
        self,
        run_without_tenant: Callable[[Callable[[Connection], Any]], Awaitable[Any]],
        wakeups: Wakeups,
        read_outcomes: Callable[[], Awaitable[Outcomes | None]],
        beat_seconds: float,
    ) -> None:
        self._run_without_tenant = run_without_tenant
        self._wakeups = wakeups
        self._read_outcomes = read_outcomes
        self._beat_seconds = beat_seconds
        self._lock = asyncio.Lock()
        self._seen: Seen = Seen(None, None, None, None, (), None)
        self._fresh_until = 0.0
        self._sums: tuple[Spending | None, Asked | None] = (None, None)
        self._summed_until = 0.0
        self._last_fault = "ok", 0.0

    async def readiness(self) -> Readiness:
        """Ask every part. Only the database and its schema decide whether requests can be served."""
        parts: dict[str, State] = dict.fromkeys(("database", "migrations", *QUEUES, BEAT), "unknown")
        parts["broker"] = "ok" if self._wakeups.broker_reachable else "unavailable"
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                alive = await self._run_without_tenant(self._who_is_there)
        except Exception as error:  # noqa: BLE001 - whatever keeps it from answering
            known = database_fault(error)
            parts["database"] = "unavailable" if known is None else known.name
            return Readiness("unavailable", parts)
        parts["database"] = self._write_fault()
        parts["migrations"] = "behind" if alive is None else "ok"
        if alive is None:
            return Readiness("unavailable", parts)
        served = {queue for process in alive for queue in process.queues}
        parts |= {queue: "ok" if queue in served else "missing" for queue in QUEUES}
        parts[BEAT] = "ok" if any(process.kind == BEAT for process in alive) else "missing"
        return Readiness("ok" if set(parts.values()) == {"ok"} else "degraded", parts)

    def note_fault(self, known: DatabaseFault) -> None:
        """Remember a fault that a request met; readiness names those that a look at the database does not find."""
        if known.is_about_writes:
            self._last_fault = known.name, time.monotonic()

    def _write_fault(self) -> State:
        name, noted_at = self._last_fault
        return name if time.monotonic() - noted_at < FAULT_SECONDS else "ok"

    async def metrics(self) -> bytes:
        """Return the gauges in Prometheus' text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Gauges(await self.seen()))
        return generate_latest(registry)

    async def seen(self) -> Seen:
        """Return what the installation is like; at most one look every few seconds."""
        async with self._lock:
            if time.monotonic() >= self._fresh_until:
                self._seen = await self._see()
                self._fresh_until = time.monotonic() + CACHE_SECONDS
            return self._seen

    async def _see(self) -> Seen:
        seen = Seen(None, None, None, None, (), None)
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                seen = await self._run_without_tenant(self._all)
        except Exception as error:  # noqa: BLE001 - a scrape has to answer whatever is wrong
            log.warning("operations.unknown", error=fault(error))
        else:
            spending, asked = await self._sum()
            seen = seen._replace(spending=spending, asked=asked)
        depths = await self._wakeups.depths()
        return seen._replace(depths=depths, gateways=None if depths is None else await self._read_outcomes())

    async def _sum(self) -> tuple[Spending | None, Asked | None]:
        """Return what models were asked; apart from all else, which must not be unknown with it."""
        began = time.monotonic()
        if began >= self._summed_until:
            try:
                async with asyncio.timeout(SUM_SECONDS):
                    self._sums = await self._run_without_tenant(
                        lambda connection: (budgets.spending(connection), backlog.asked(connection))
                    )
            except Exception as error:  # noqa: BLE001 - as above
                self._sums = (None, None)
                log.warning("operations.not_summed", error=fault(error))
            now = time.monotonic()
            self._summed_until = now + SUMS_SHARE * (now - began)
        return self._sums

    def _who_is_there(self, connection: Connection) -> list[Process] | None:
        """Return the processes seen lately, None if the schema is older than the code."""
        known = connection.scalar(text("select to_regclass('alembic_version') is not null"))
        readable = known and connection.scalar(text("select has_table_privilege('alembic_version', 'select')"))
        if not readable or not is_enough(connection.scalar(text("select version_num from alembic_version"))):
            return None
        return processes.alive(connection, self._beat_seconds)

    def _all(self, connection: Connection) -> Seen:
        return Seen(
            processes.backlog(connection),
            None,
            backlog.waiting(connection),
            None,
            processes.alive(connection, self._beat_seconds),
            None,
        )


class _Gauges(Collector):
    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def collect(self) -> Iterator[Metric]:
        left, spending, waiting, asked, alive, depths, gateways = self._seen
        if left is not None:
            yield from _backlog(left)
            workers = [process for process in alive if process.kind == "worker"]
            by_queue = {queue: [each for each in workers if queue in each.queues] for queue in QUEUES}
            yield _gauge(
                "workers_alive",
                "Workers seen lately.",
                {q: len(workers_there) for q, workers_there in by_queue.items()},
            )
            slots = {queue: sum(each.slots for each in workers_there) for queue, workers_there in by_queue.items()}
            yield _gauge("worker_slots", "Tasks that the workers seen lately can be at.", slots)
            beats = sum(process.kind == BEAT for process in alive)
            yield GaugeMetricFamily("palimpsest_beats_alive", "Beats seen lately.", value=beats)
        if spending is not None:
            yield from _spending(spending)
        if waiting is not None:
            yield from _waiting(waiting)
        if asked is not None:
            yield from _asked(asked)
        if depths is not None:
            yield _gauge("queue_depth", "Messages that nobody has taken.", depths)
        if gateways is not None and (ratio := gateways.failed_open_ratio) is not None:
            yield GaugeMetricFamily(
                "palimpsest_gateway_failed_open_ratio",
                "Share of the gateways' requests of the last five minutes that went on as they came.",
                value=ratio,
            )


def _backlog(backlog: Backlog) -> Iterator[Metric]:
    named = {
        "due_checks": "Conversations whose check is due.",
        "oldest_due_check_seconds": "Seconds for which the oldest due check has been.",
        "expired_leases": "Running runs whose worker has not been heard of in time.",
        "dead_runs": "Runs out of attempts that nobody has retried.",
    }
    for name, description in named.items():
        yield GaugeMetricFamily(f"palimpsest_{name}", description, value=getattr(backlog, name))
    active = {RunState.QUEUED: backlog.queued_runs, RunState.RUNNING: backlog.running_runs}
    yield _gauge("active_runs", "Runs that wait or are under way.", active, label="state")


def _spending(spending: Spending) -> Iterator[Metric]:
    named = {
        "model_tokens_today": ("Tokens that model calls read and wrote since midnight UTC.", spending.tokens),
        "model_cost_usd_today": ("USD that model calls have cost since midnight UTC.", float(spending.cost_usd)),
        "waiting_summaries": ("Summaries that wait for another day's budget.", spending.waiting),
    }
    for name, (description, value) in named.items():
        yield GaugeMetricFamily(f"palimpsest_{name}", description, value=value)


def _waiting(waiting: Mapping[Kind, Waits]) -> Iterator[Metric]:
    oldest = {queue: waiting[queue].oldest_seconds for queue in QUEUES}
    yield _gauge("oldest_queued_run_seconds", "Seconds for which the oldest queued run has waited.", oldest)
    seconds = waiting["budget"].oldest_seconds
    yield GaugeMetricFamily(
        "palimpsest_oldest_waiting_summary_seconds",
        "Seconds for which the oldest of the summaries that wait for another day's budget has.",
        value=seconds,
    )
    named: dict[Kind, tuple[str, str, str]] = {
        "overdue": ("overdue_summaries", "overdue_summary", "Waiting summaries whose day has come"),
        "webhooks": ("due_deliveries", "due_delivery", "Webhook deliveries that are due"),
    }
    for kind, (several, one, description) in named.items():
        count, seconds = waiting[kind]
        yield GaugeMetricFamily(f"palimpsest_{several}", f"{description}.", value=count)
        yield GaugeMetricFamily(
            f"palimpsest_oldest_{one}_seconds", f"{description}: seconds since the oldest was.", value=seconds
        )


def _asked(asked: Asked) -> Iterator[Metric]:
    """Return counters that no process has: a restart does not set them back."""
    yield CounterMetricFamily(
        "palimpsest_recorded_model_calls", "Calls of models since the first day, by the audit.", value=asked.calls
    )
    tokens = CounterMetricFamily(
        "palimpsest_recorded_model_tokens",
        "Tokens that models read and wrote since the first day.",
        labels=["direction"],
    )
    tokens.add_metric(["input"], asked.input_tokens)
    tokens.add_metric(["output"], asked.output_tokens)
    yield tokens
    yield CounterMetricFamily(
        "palimpsest_recorded_model_cost_usd",
        "USD that models have cost since the first day.",
        value=float(asked.cost_usd),
    )


def families() -> list[Metric]:
    """Return what there is to see of an installation, for the documentation."""
    waits = dict.fromkeys(get_args(Kind), Waits(0, 0.0))
    nothing = Seen(
        Backlog(0, 0.0, 0, 0, 0, 0),
        Spending(0, Decimal(0), 0),
        waits,
        Asked(0, 0, 0, Decimal(0)),
        (),
        dict.fromkeys(QUEUES, 0),
        Outcomes(1, 0),
    )
    return nothing.families()


def _gauge(
    name: str,
    description: str,
    values: Mapping[str, float] | Mapping[Queue, float] | Mapping[RunState, float],
    label: str = "queue",
) -> Metric:
    family = GaugeMetricFamily(f"palimpsest_{name}", description, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
