"""Wake-ups: conversations whose check is due, sent to the workers in batches of one message."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

import redis.asyncio
import structlog
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from store.broker import CHECK_TASK, CHECKS, celery_app

if TYPE_CHECKING:
    from uuid import UUID

    from api.metrics import Metrics
    from store.settings import Settings

log = structlog.get_logger()

WATCH_SECONDS: Final = 1.0
"""Seconds a broker may take to answer before it counts as unreachable."""
RETRY_SECONDS: Final = 0.5
FLUSH_SECONDS: Final = 3.0
"""Seconds that a process which ends gives the broker to take the last batch."""
_CHANNEL: Final = "palimpsest:watch"


class Wakeups:
    """Collects ids for a few tens of milliseconds and sends them as one task, off the request path.

    A batch that is lost, with the process or with the broker, loses nothing: the check is due in Postgres, and the
    sweeper finds it.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._metrics = metrics
        self._interval = settings.wakeup_interval_seconds
        self._app = celery_app(settings, "palimpsest-api")
        self._watch = BrokerWatch(settings.broker_url.get_secret_value())
        self._ids: dict[UUID, None] = {}
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
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
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

    def add(self, conversation_id: UUID) -> Literal["queued", "deferred"]:
        """Put a conversation into the next batch, or leave it to the sweeper while the broker is away."""
        if not self._watch.reachable:
            self._metrics.wakeups["deferred"].inc()
            return "deferred"
        self._ids[conversation_id] = None
        self._filled.set()
        return "queued"

    async def _send_batches(self) -> None:
        while True:
            await self._filled.wait()
            await asyncio.sleep(self._interval)
            self._filled.clear()
            await self._send()

    async def _send(self) -> None:
        batch, self._ids = [str(identifier) for identifier in self._ids], {}
        try:
            await asyncio.get_running_loop().run_in_executor(self._sender, self._publish, batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, the sweeper covers it
            self._metrics.wakeups["lost"].inc(len(batch))
            log.warning("wakeups.lost", count=len(batch), error=type(error).__name__)
        else:
            self._metrics.wakeups["sent"].inc(len(batch))

    def _publish(self, batch: list[str]) -> None:
        if batch:
            self._app.send_task(CHECK_TASK, args=[batch], queue=CHECKS)


class BrokerWatch:
    """Knows whether the broker can be reached, without asking it on the request path.

    A subscribed connection notices at once when the broker goes, and pings it for the case that it only hangs.
    """

    def __init__(self, url: str) -> None:
        self._client = redis.asyncio.from_url(
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
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._client.aclose()

    async def _watch(self) -> None:
        while True:
            try:
                await self._listen()
            except (RedisError, OSError, TimeoutError) as error:
                if self.reachable or not self._answered.is_set():
                    log.warning("broker.unreachable", error=type(error).__name__)
            self.reachable = False
            self._answered.set()
            await asyncio.sleep(RETRY_SECONDS)

    async def _listen(self) -> None:
        async with self._client.pubsub() as channel:
            await channel.subscribe(_CHANNEL)
            while True:
                await channel.ping()
                async with asyncio.timeout(WATCH_SECONDS):
                    while (message := await channel.get_message(timeout=WATCH_SECONDS)) is None or message[
                        "type"
                    ] != "pong":
                        pass
                if not self.reachable:
                    log.info("broker.reachable")
                self.reachable = True
                self._answered.set()
                # Returns nothing after the time; raises the moment the connection ends.
                await channel.get_message(timeout=WATCH_SECONDS)
