"""Rate limits of keys and tenants, counted in Redis by `limits`: how many requests are answered in a time.

Windows slide: a request counts for as long as the window is, less and less towards its end, so that nobody may send a
double share around the turn of a minute. A request that one limit refuses does not count against any; but where several
race for the last place, those that lose it may have been counted in a shorter window, or for their key.
"""

from __future__ import annotations

import asyncio
import math
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog
from redis.exceptions import TimeoutError as RedisTimeoutError

from actions.background.ending import end
from runtime.addresses.redis_clients import async_blocking_pool
from runtime.addresses.shown_address import DATABASE_PORT, shown_address
from runtime.database_faults import DATABASE_FAULTS, database_fault
from runtime.errors import RequestError, UnavailableError
from runtime.log import fault
from store.tenants import limits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

    from limits import RateLimitItem
    from limits.aio.strategies import RateLimiter
    from sqlalchemy import Connection

    from actions.auth.principals import Principal
    from actions.monitoring.metrics import Metrics, RateScope
    from runtime.settings import Settings
    from store.operations.operator_actions import Operator
    from store.tenants.limits import RateOverride

    RunWithoutTenant = Callable[[Callable[[Connection], Any]], Awaitable[Any]]

log = structlog.get_logger()

REDIS_SECONDS: Final = 0.05
"""Seconds that counting may keep one request waiting, whatever is wrong with Redis."""
PAUSE_SECONDS: Final = 5.0
"""Seconds for which Redis is left alone after it failed; then one request tries whether it is back."""
FAILURES: Final = 3
"""Times in a row that Redis kept requests waiting for too long before it counts as away: one may be this process's
fault, whose requests then all wait at once."""
REFRESH_SECONDS: Final = 5.0
"""Seconds between two looks for limits that the operator has set for a tenant."""
CONNECTIONS: Final = 16
"""Most connections to Redis; requests wait for one within their REDIS_SECONDS."""
_PREFIX: Final = "palimpsest:rate"
_LONG_AGO: Final = datetime(2000, 1, 1, tzinfo=UTC)


class Allowed(NamedTuple):
    """What may be asked, in one or more windows."""

    key: tuple[RateLimitItem, ...] = ()
    tenant: tuple[RateLimitItem, ...] = ()


class Left(NamedTuple):
    """What is left of one limit, and in how many seconds there will be more."""

    scope: RateScope
    limit: RateLimitItem
    remaining: int
    seconds: int


class RateLimitedError(RequestError):
    """One request more than a limit allows."""

    def __init__(self, refused: Left, left: Sequence[Left]) -> None:
        whose = "This key" if refused.scope == "key" else "The tenant of this key"
        super().__init__(
            "rate_limited",
            f"{whose} may make {refused.limit.amount:,} requests in {refused.limit.get_expiry():,} s.",
            retry_after=refused.seconds,
        )
        self.left = left


class RateLimits:
    """The limits in force in one process. Off until somebody sets one, and costs nothing then."""

    def __init__(self, settings: Settings, metrics: Metrics, run_without_tenant: RunWithoutTenant) -> None:
        self._settings = settings
        self._metrics = metrics
        self._run_without_tenant = run_without_tenant
        self._default = Allowed(_read(settings.rate_limit_key), _read(settings.rate_limit_tenant))
        self._own: dict[UUID, Allowed] = {}
        self._read_until = _LONG_AGO
        self._counter: _Counter | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self.is_on = any(self._default)
        """Whether anything is limited."""

    async def start(self) -> None:
        """Learn what is set for tenants, now and every few seconds from then on. The database need not be up yet."""
        await self._refresh()
        self._refreshing = asyncio.create_task(self._keep_fresh())

    async def stop(self) -> None:
        """Close every connection."""
        await end(self._refreshing)
        if self._counter is not None:
            await self._counter.close()

    async def check(self, caller: Principal | Operator) -> Sequence[Left]:
        """Count a request of a caller; return what is left of its limits.

        Raises RateLimitedError for one request too many, and UnavailableError where it cannot be counted and may not
        be answered uncounted.
        """
        allowed = self._own.get(caller.tenant_id, self._default)
        if not any(allowed):
            return ()
        if self._counter is None:
            self._counter = _Counter(self._settings)
        names = {"key": caller.key_id.hex, "tenant": caller.tenant_id.hex}
        asked = [(scope, limit, names[scope]) for scope in _SCOPES for limit in getattr(allowed, scope)]
        counted = await self._counter.count(asked)
        if counted is None:
            self._metrics.rate_limits_unknown.inc()
            if self._settings.rate_limit_without_redis == "closed":
                raise UnavailableError("Requests can't be counted just now, and none is answered uncounted here.")
            return ()
        refused, left = counted
        if refused is not None:
            self._metrics.rate_limited[refused.scope].inc()
            raise RateLimitedError(refused, left)
        return left

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            await self._refresh()

    async def _refresh(self) -> None:
        try:
            # Again from a minute before: what was committed later may have been written earlier.
            since = max(_LONG_AGO, self._read_until - timedelta(minutes=1))
            changed = await self._run_without_tenant(lambda connection: limits.rate_limits_since(connection, since))
        except Exception as error:  # noqa: BLE001 - what was read last stays in force until the database is back
            if isinstance(error, OSError) or database_fault(error) == DATABASE_FAULTS["08"]:
                log.warning(
                    "database.unreachable",
                    address=shown_address(self._settings.database_url.get_secret_value(), DATABASE_PORT),
                    setting="PALIMPSEST_DATABASE_URL",
                    error=fault(error),
                )
            else:
                log.warning("rate_limits.not_read", error=fault(error))
            return
        for each in changed:
            self._own[each.tenant_id] = self._allowed(each)
            self._read_until = max(self._read_until, each.changed_at)
        self.is_on = any(self._default) or any(any(allowed) for allowed in self._own.values())

    def _allowed(self, override: RateOverride) -> Allowed:
        try:
            return Allowed(
                self._default.key if override.per_key is None else _read(override.per_key),
                self._default.tenant if override.per_tenant is None else _read(override.per_tenant),
            )
        except ValueError:
            log.warning("rate_limits.not_understood", tenant_id=str(override.tenant_id))
            return self._default


def header_fields(left: Sequence[Left]) -> dict[str, str]:
    """Return the header fields of draft-ietf-httpapi-ratelimit-headers, names in lower case.

    `q` is the quota of `w` seconds, `r` what remains of it, `t` the seconds until there is more.
    """
    named = [(f'"{each.scope}-{each.limit.get_expiry()}"', each) for each in left]
    return {
        "ratelimit-policy": ", ".join(f"{name};q={one.limit.amount};w={one.limit.get_expiry()}" for name, one in named),
        "ratelimit": ", ".join(f"{name};r={one.remaining};t={one.seconds}" for name, one in named),
    }


_SCOPES: Final[tuple[RateScope, ...]] = ("key", "tenant")


class _Counter:
    """Counts in Redis, and leaves it alone for a while when it does not answer."""

    def __init__(self, settings: Settings) -> None:
        # Only installations that limit anything load the library.
        from limits.aio.storage import RedisStorage  # noqa: PLC0415
        from limits.aio.strategies import SlidingWindowCounterRateLimiter  # noqa: PLC0415
        from redis.asyncio.retry import Retry  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415

        url = settings.broker_url.get_secret_value()
        self._pool = async_blocking_pool(
            url,
            max_connections=CONNECTIONS,
            timeout=REDIS_SECONDS,
            socket_timeout=REDIS_SECONDS,
            socket_connect_timeout=REDIS_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        options: Any = {"connection_pool": self._pool}
        # The pool knows where to go; the library wants a URL all the same.
        storage = RedisStorage("async+redis://", implementation="redispy", key_prefix=_PREFIX, **options)
        self._limiter: RateLimiter = SlidingWindowCounterRateLimiter(storage)
        self._failures = 0
        self._failed_at = -math.inf
        self._away_until = -math.inf

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.disconnect()

    async def count(
        self, asked: Sequence[tuple[RateScope, RateLimitItem, str]]
    ) -> tuple[Left | None, list[Left]] | None:
        """Return the limit that refuses a request, None for none, and what is left of all; None if Redis is away."""
        now = time.monotonic()
        if now < self._away_until:
            return None
        if self._failures >= FAILURES:
            # This request tries it; those that come meanwhile do not wait for the same.
            self._away_until = now + PAUSE_SECONDS
        try:
            async with asyncio.timeout(REDIS_SECONDS):
                counted = await self._count(asked)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with Redis, or between it and us
            self._failed(error, now)
            return None
        if self._failures >= FAILURES:
            log.info("rate_limits.counted_again")
        self._failures, self._away_until = 0, -math.inf
        return counted

    async def _count(self, asked: Sequence[tuple[RateScope, RateLimitItem, str]]) -> tuple[Left | None, list[Left]]:
        # With more than one limit, the others must not count what one refuses.
        left = await self._all_left(asked) if len(asked) > 1 else []
        refused = next((place for place, each in enumerate(left) if not each.remaining), None)
        if refused is None:
            refused = await self._hit(asked)
            left = await self._all_left(asked)
        if refused is None:
            return None, left
        left[refused] = left[refused]._replace(remaining=0, seconds=max(1, left[refused].seconds))
        return left[refused], left

    async def _hit(self, asked: Sequence[tuple[RateScope, RateLimitItem, str]]) -> int | None:
        """Count a request against one limit after the other; return the place of the one that refuses it, if any."""
        for place, (_, limit, name) in enumerate(asked):
            if not await self._limiter.hit(limit, name):
                return place
        return None

    async def _all_left(self, asked: Sequence[tuple[RateScope, RateLimitItem, str]]) -> list[Left]:
        return await asyncio.gather(*(self._left(*each) for each in asked))

    async def _left(self, scope: RateScope, limit: RateLimitItem, name: str) -> Left:
        stats = await self._limiter.get_window_stats(limit, name)
        return Left(scope, limit, int(stats.remaining), max(0, math.ceil(stats.reset_time - time.time())))

    def _failed(self, error: Exception, began: float) -> None:
        if not isinstance(error, TimeoutError | RedisTimeoutError):
            # A connection that is refused says so.
            self._failures = max(FAILURES, self._failures + 1)
        elif began > self._failed_at:
            # Those that have waited at the same time were kept waiting by the same thing.
            self._failures += 1
        self._failed_at = time.monotonic()
        if self._failures >= FAILURES:
            self._away_until = time.monotonic() + PAUSE_SECONDS
        log.warning("rate_limits.uncounted", error=type(error).__name__, failures=self._failures)


def _read(text: str) -> tuple[RateLimitItem, ...]:
    """Return the limits in a text, the shortest window first; raise ValueError for what is none.

    Short windows fill first, and what they refuse then does not count in the long ones.
    """
    if not text:
        return ()
    from limits import parse_many  # noqa: PLC0415 - as above

    return tuple(sorted(parse_many(text), key=lambda limit: limit.get_expiry()))
