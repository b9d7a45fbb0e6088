"""Outcomes of the gateways' requests in the last minutes, counted in Redis: the console asks no gateway."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from actions.background.batches import Batches
from runtime.addresses.redis_clients import async_redis_client

if TYPE_CHECKING:
    from runtime.settings import Settings

MINUTES: Final = 5
"""Minutes that are looked at: as long as the alert waits."""
REDIS_SECONDS: Final = 1.0
"""Seconds that Redis may take. What cannot be counted in them is not: requests are never kept waiting."""
_ALL: Final = "requests"
_OPEN: Final = "failed_open"
_PREFIX: Final = "palimpsest:gateway-outcomes:"
_EXPIRY_SECONDS: Final = 60 * (MINUTES + 2)


class Outcomes(NamedTuple):
    """Requests of all gateways in the last minutes."""

    requests: int
    failed_open: int

    @property
    def failed_open_ratio(self) -> float | None:
        """The share of those that went on as they came; None where there were no requests."""
        return self.failed_open / self.requests if self.requests else None


class GatewayOutcomes(Batches):
    """Counts outcomes for all gateways together, and reads the counts."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._client = async_redis_client(
            settings.broker_url.get_secret_value(), socket_connect_timeout=REDIS_SECONDS, retry=Retry(NoBackoff(), 0)
        )
        self._counts: Counter[str] = Counter()

    def add(self, *, is_open: bool) -> None:
        """Count a request; `is_open` if it went on as it came, as the database did not answer."""
        self._counts[_ALL] += 1
        self._counts[_OPEN] += is_open
        self._filled.set()

    async def read(self) -> Outcomes | None:
        """Return the outcomes of the last minutes; None if Redis does not tell in time."""
        now = int(time.time()) // 60
        try:
            async with asyncio.timeout(REDIS_SECONDS), self._client.pipeline(transaction=False) as pipe:
                for minute in range(now - MINUTES + 1, now + 1):
                    pipe.hmget(f"{_PREFIX}{minute}", [_ALL, _OPEN])
                counts = [[int(count or 0) for count in row] for row in await pipe.execute()]
        except (RedisError, OSError, TimeoutError, ValueError):
            return None
        return Outcomes(sum(row[0] for row in counts), sum(row[1] for row in counts))

    async def stop(self) -> None:
        """Write what is counted and end."""
        await super().stop()
        await self._client.aclose()

    async def _write(self) -> None:
        counts, self._counts = self._counts, Counter()
        key = f"{_PREFIX}{int(time.time()) // 60}"
        try:
            async with asyncio.timeout(REDIS_SECONDS), self._client.pipeline(transaction=False) as pipe:
                for name, count in counts.items():
                    pipe.hincrby(key, name, count)
                pipe.expire(key, _EXPIRY_SECONDS)
                await pipe.execute()
        except (RedisError, OSError, TimeoutError):
            return
