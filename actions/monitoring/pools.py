"""The connections of one API process to the database, for the metrics."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import QueuePool

from actions.background.ending import end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.ext.asyncio import AsyncEngine

    from store.hot_pool import HotPool

LOOK_SECONDS: Final = 2.0
"""Seconds between two looks at the pools: not only at a scrape, which another process may answer."""
HOT: Final = "hot"
QUERIES: Final = "queries"


class Pools:
    """Watches the two pools of a process: the hot calls' and everything else's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # Of several processes the live ones count together.
        self._connections = Gauge(
            "palimpsest_pool_connections",
            "Connections to the database.",
            ["pool", "state"],
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._size = Gauge(
            "palimpsest_pool_size",
            "Most connections that a pool opens.",
            ["pool"],
            registry=registry,
            multiprocess_mode="livesum",
        )
        waits = Counter(
            "palimpsest_pool_waits", "Calls that found every connection in use.", ["pool"], registry=registry
        )
        timeouts = Counter(
            "palimpsest_pool_timeouts", "Calls for which no connection came free in time.", ["pool"], registry=registry
        )
        self._waits = {pool: waits.labels(pool) for pool in (HOT, QUERIES)}
        self._timeouts = {pool: timeouts.labels(pool) for pool in (HOT, QUERIES)}
        self._reported = (0, 0)
        self._hot: HotPool | None = None
        self._queries: QueuePool | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, hot: HotPool, engine: AsyncEngine) -> None:
        """Begin to look at them now and then."""
        self._hot = hot
        self._queries = engine.pool if isinstance(engine.pool, QueuePool) else None
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """End."""
        await end(self._task)

    @contextmanager
    def query(self) -> Iterator[None]:
        """Note whether a query has to wait for a connection, and whether in vain."""
        pool = self._queries
        if pool is not None and pool.checkedout() >= pool.size():
            self._waits[QUERIES].inc()
        try:
            yield
        except PoolTimeoutError:
            self._timeouts[QUERIES].inc()
            raise

    def sample(self) -> None:
        """Record the state of the pools."""
        if (hot := self._hot) is not None:
            self._note(HOT, hot.get_size() - hot.get_idle_size(), hot.get_idle_size(), hot.size)
            waits, timeouts = self._reported
            self._reported = hot.waits, hot.timeouts
            self._waits[HOT].inc(hot.waits - waits)
            self._timeouts[HOT].inc(hot.timeouts - timeouts)
        if (queries := self._queries) is not None:
            self._note(QUERIES, queries.checkedout(), queries.checkedin(), queries.size())

    def _note(self, pool: str, used: int, idle: int, size: int) -> None:
        self._connections.labels(pool, "used").set(used)
        self._connections.labels(pool, "idle").set(idle)
        self._size.labels(pool).set(size)

    async def _watch(self) -> None:
        while True:
            self.sample()
            await asyncio.sleep(LOOK_SECONDS)
