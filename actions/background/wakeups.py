"""Wake-ups: conversations whose check is due, sent to the workers in batches of one message, and runs that wait."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import structlog
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from actions.background.ending import end
from runtime.addresses.redis_clients import async_redis_client
from runtime.addresses.shown_address import BROKER_PORT, shown_address
from runtime.broker import BATCH, CHECK_TASK, CHECKS, LATER, QUEUES, RUN_TASK, SHARE, SUMMARIES, celery_app, queue_keys
from runtime.fault_points import pause_for_test
from runtime.tracing import TRACING, header

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from redis.asyncio.client import PubSub

    from actions.monitoring.metrics import Metrics
    from runtime.queues import Queue
    from runtime.settings import Settings

log = structlog.get_logger()

WATCH_SECONDS: Final = 1.0
"""Seconds a broker may take to answer before it counts as unreachable."""
RETRY_SECONDS: Final = 0.5
CROWD: Final = 8
"""Conversations that come within one interval from which on a batch is collected for PATIENCE intervals."""
PATIENCE: Final = 3
FLUSH_SECONDS: Final = 3.0
"""Seconds that a process which ends gives the broker to take the last batch."""
_CHANNEL: Final = "palimpsest:watch"


class Task(NamedTuple):
    """A task to be sent."""

    name: str
    args: Sequence[Any]
    queue: str
    priority: int
    headers: Mapping[str, Any]
    """Beside Celery's own; the task finds them in its request."""


class _Waiting(NamedTuple):
    tenant_id: UUID
    is_urgent: bool


class Wakeups:
    """Collects ids for some tens of milliseconds and sends them as one task, off the request path.

    A batch that is lost, with the process or with the broker, loses nothing: the check is due in Postgres, the run is
    queued there, and the sweep finds them.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._metrics = metrics
        self._interval = settings.wakeup_interval_seconds
        self._app = celery_app(settings, "palimpsest-api")
        self._watch = BrokerWatch(settings.broker_url.get_secret_value())
        self._ids: dict[UUID, _Waiting] = {}
        self._shares: Counter[UUID] = Counter()
        self._second = 0.0
        self._runs: dict[UUID, tuple[UUID, Queue]] = {}
        self._traces: dict[UUID, str] = {}
        self._filled = asyncio.Event()
        # One thread: a broker that hangs holds up the next batch, never a request.
        self._sender = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wakeups")
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to watch the broker and to send."""
        await self._watch.start()
        self._task = asyncio.create_task(self._send_batches())

    async def stop(self) -> None:
        """Send what is collected and end."""
        await end(self._task)
        if self._watch.reachable:
            # Also with nothing collected: the thread takes this one last, so a batch on its way gets there.
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._send()
        await self._watch.stop()
        self._sender.shutdown(wait=False, cancel_futures=True)
        self._app.close()

    @property
    def broker_reachable(self) -> bool:
        """Whether the broker answered last time."""
        return self._watch.reachable

    def add(self, conversation_id: UUID, tenant_id: UUID) -> Literal["queued", "deferred"]:
        """Put a conversation into the next batch, or leave it to the sweep while the broker is away.

        What a tenant has beyond its share of a second waits behind everybody else's.
        """
        if not self._watch.reachable:
            self._metrics.wakeups["deferred"].inc()
            return "deferred"
        now = asyncio.get_running_loop().time()
        if now - self._second >= 1:
            self._second = now
            self._shares.clear()
        self._shares[tenant_id] += 1
        self._ids.setdefault(conversation_id, _Waiting(tenant_id, is_urgent=self._shares[tenant_id] <= SHARE))
        self._note_trace(conversation_id)
        self._filled.set()
        return "queued"

    async def depths(self) -> dict[str, int] | None:
        """Return the messages that nobody has taken, by queue; None if the broker does not say so at once."""
        return await self._watch.depths() if self._watch.reachable else None

    def add_run(self, tenant_id: UUID, run_id: UUID, queue: Queue = SUMMARIES) -> None:
        """Put a queued run into the next batch, or leave it to the sweep while the broker is away."""
        if self._watch.reachable:
            self._runs[run_id] = tenant_id, queue
            self._note_trace(run_id)
            self._filled.set()

    def _note_trace(self, identifier: UUID) -> None:
        """Remember in which trace a conversation or a run was woken."""
        if TRACING.traces is not None and (place := TRACING.traces.here()) is not None:
            self._traces[identifier] = place

    async def _send_batches(self) -> None:
        while True:
            await self._filled.wait()
            await asyncio.sleep(self._interval)
            if CROWD <= len(self._ids) < BATCH:
                # A message costs its sender and its worker more than it costs a crowd to wait for more of it.
                await asyncio.sleep(self._interval * (PATIENCE - 1))
            self._filled.clear()
            await self._send()

    async def _send(self) -> None:
        batch, self._ids = self._ids, {}
        runs, self._runs = self._runs, {}
        traces, self._traces = self._traces, {}
        tasks = _tasks(batch, runs, traces)
        try:
            await asyncio.get_running_loop().run_in_executor(self._sender, self._publish, tasks)
        except Exception as error:  # noqa: BLE001 - whatever it is, the sweep covers it
            self._metrics.wakeups["lost"].inc(len(batch))
            self._metrics.wakeup_messages["lost"].inc(len(tasks))
            log.warning("wakeups.lost", count=len(batch) + len(runs), error=type(error).__name__)
        else:
            self._metrics.wakeups["sent"].inc(len(batch))
            self._metrics.wakeup_messages["sent"].inc(len(tasks))

    def _publish(self, tasks: Sequence[Task]) -> None:
        with self._app.producer_pool.acquire(block=True) as producer:
            for task in tasks:
                self._app.send_task(
                    task.name,
                    args=task.args,
                    queue=task.queue,
                    priority=task.priority,
                    headers=task.headers,
                    producer=producer,
                )
        pause_for_test("wakeup.sent")


def _tasks(
    batch: Mapping[UUID, _Waiting], runs: Mapping[UUID, tuple[UUID, Queue]], traces: Mapping[UUID, str]
) -> list[Task]:
    """Return the messages for conversations and runs, with the traces that they come from."""
    tasks: list[Task] = []
    for priority in (0, LATER):
        chosen = {key: waiting.tenant_id for key, waiting in batch.items() if waiting.is_urgent == (priority == 0)}
        ids = by_turns(chosen)
        parts = (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))
        tasks += [Task(CHECK_TASK, [[*map(str, part)]], CHECKS, priority, _headers(part, traces)) for part in parts]
    return tasks + [
        Task(RUN_TASK, [str(tenant), str(run)], queue, 0, _headers([run], traces))
        for run, (tenant, queue) in runs.items()
    ]


def _headers(identifiers: Sequence[UUID], traces: Mapping[UUID, str]) -> dict[str, Any]:
    return header({str(each): traces[each] for each in identifiers if each in traces}) if traces else {}


def by_turns(tenants: Mapping[UUID, UUID]) -> list[UUID]:
    """Return conversations, given with their tenants, so that tenants take turns; each one's keep their order."""
    turns: Counter[UUID] = Counter()
    place: dict[UUID, int] = {}
    for conversation_id, tenant_id in tenants.items():
        turns[tenant_id] += 1
        place[conversation_id] = turns[tenant_id]
    return sorted(tenants, key=place.__getitem__)


class BrokerWatch:
    """Knows whether the broker can be reached, without asking it on the request path.

    A subscribed connection notices at once when the broker goes, and pings it for the case that it only hangs.
    """

    def __init__(self, url: str) -> None:
        self._address = shown_address(url, BROKER_PORT)
        self._client = async_redis_client(
            url,
            socket_connect_timeout=WATCH_SECONDS,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
        )
        self._answered = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.reachable = False

    async def start(self) -> None:
        """Begin to watch; return once the broker has answered, or is known not to."""
        self._task = asyncio.create_task(self._watch())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._answered.wait(), WATCH_SECONDS * 2)

    async def stop(self) -> None:
        """End."""
        await end(self._task)
        await self._client.aclose()

    async def depths(self) -> dict[str, int] | None:
        """Return how many messages wait in each queue, None if the broker does not say so in time."""
        keys = [(queue, key) for queue in QUEUES for key in queue_keys(queue)]
        depths: Counter[str] = Counter(dict.fromkeys(QUEUES, 0))
        try:
            async with asyncio.timeout(WATCH_SECONDS), self._client.pipeline(transaction=False) as pipe:
                for _, key in keys:
                    pipe.llen(key)
                for (queue, _), length in zip(keys, await pipe.execute(), strict=True):
                    depths[queue] += length
        except (RedisError, OSError, TimeoutError):
            return None
        return dict(depths)

    async def _watch(self) -> None:
        while True:
            # Whatever is there now, and whatever the client makes of its answers: it may be the broker again.
            with suppress(Exception):
                async with self._client.pubsub() as channel:
                    await self._listen(channel)
            await asyncio.sleep(RETRY_SECONDS)

    async def _listen(self, channel: PubSub) -> None:
        """Keep `reachable` right until the broker has gone."""
        try:
            await channel.subscribe(_CHANNEL)
            while True:
                await self._ping(channel)
                # Returns nothing after the time; raises the moment the connection ends.
                await channel.get_message(timeout=WATCH_SECONDS)
        except Exception as error:  # noqa: BLE001 - as above
            if self.reachable or not self._answered.is_set():
                log.warning(
                    "broker.unreachable",
                    address=self._address,
                    setting="PALIMPSEST_BROKER_URL",
                    error=type(error).__name__,
                )
        finally:
            # Before the connection is closed, which takes its time.
            self.reachable = False
            self._answered.set()

    async def _ping(self, channel: PubSub) -> None:
        await channel.ping()
        async with asyncio.timeout(WATCH_SECONDS):
            while (message := await channel.get_message(timeout=WATCH_SECONDS)) is None or message["type"] != "pong":
                pass
        if not self.reachable:
            log.info("broker.reachable")
        self.reachable = True
        self._answered.set()
