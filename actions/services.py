"""What the routes of one process share, and the request's transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from actions.auth.jwt_tokens import JwtTokens
from actions.auth.principals import Authenticator
from actions.auth.rate_limits import RateLimits
from actions.background.assemblies import Assemblies
from actions.background.gateway_outcomes import GatewayOutcomes
from actions.background.heartbeat import Heartbeat
from actions.background.last_used import LastUsed
from actions.background.run_waits import RunWaits
from actions.background.search_slots import SearchSlots
from actions.background.usages import Usages
from actions.background.wakeups import Wakeups
from actions.input.strict_json import Limits, StrictJson
from actions.monitoring.installation import Operations
from actions.monitoring.metrics import Metrics
from runtime.held_bytes import BytesUnderWay
from runtime.tracing import TRACING
from store import engine, hot_path
from store.admission import Admission
from store.engine import async_transaction, service_async_engine
from store.runs.ended import noting_ended_runs

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncEngine

    from runtime.settings import Settings
    from store.operations.processes import ServerKind

P = ParamSpec("P")
R = TypeVar("R")

ERASURES_AT_ONCE: Final = 2
"""Of one process, on connections of their own: one may take minutes, and nobody else waits for it."""


class Services:
    """The database, the wake-ups, the metrics, and who may ask."""

    def __init__(self, settings: Settings, kind: ServerKind = "api") -> None:
        self.settings = settings
        self.strict = StrictJson(Limits.of(settings))
        self.engine = service_async_engine(settings)
        self._admission = Admission(settings.database_pool_size, patience=engine.CONNECT_SECONDS)
        self._erasures = service_async_engine(
            settings, pool_size=ERASURES_AT_ONCE, command_seconds=engine.ERASE_SECONDS
        )
        self._erasures_admission = Admission(ERASURES_AT_ONCE, patience=engine.CONNECT_SECONDS)
        self.metrics = Metrics()
        self.under_way = BytesUnderWay(max(settings.max_bytes_under_way, settings.max_body_bytes))
        self.wakeups = Wakeups(settings, self.metrics)
        self.assemblies = Assemblies(self.run, self.wakeups, self.metrics)
        self.usages = Usages(self.run, self.metrics)
        self.gateway_outcomes = GatewayOutcomes(settings)
        self.operations = Operations(
            self.run_without_tenant, self.wakeups, self.gateway_outcomes.read, settings.heartbeat_seconds
        )
        self.last_used = LastUsed(self.run_without_tenant)
        self.heartbeat = Heartbeat(self.run_without_tenant, kind, settings.heartbeat_seconds)
        self.tokens = JwtTokens(settings) if settings.jwt_jwks else None
        self.rate_limits = RateLimits(settings, self.metrics, self.run_without_tenant)
        self.run_waits = RunWaits(self.run)
        self.search_slots = SearchSlots()
        self.begun: dict[UUID, None] = {}
        """Conversations, the newest, that this process has stored turns of: another is not their first."""
        self.pool: Any = None
        self.authenticator: Authenticator

    async def start(self) -> None:
        """Open what has to be open before the first request. The database need not be up yet."""
        TRACING.start(self.settings, "palimpsest-api")
        self.pool = await hot_path.open_pool(self.settings)
        self.metrics.pools.start(self.pool, self.engine)
        self.authenticator = Authenticator(self.pool, self.settings.policy, self.last_used, self.tokens)
        await self.rate_limits.start()
        await self.wakeups.start()
        self.assemblies.start()
        self.usages.start()
        self.last_used.start()
        self.heartbeat.start()
        self.gateway_outcomes.start()
        if self.tokens is not None:
            self.tokens.keys.start()

    @property
    def timeline(self) -> dict[str, str]:
        """The header that tells clients of which timeline the database's answers are, where that is known."""
        return {"palimpsest-timeline": self.pool.timeline} if self.pool.timeline else {}

    async def stop(self) -> None:
        """Write the last assemblies, usages and uses of keys, send the last wake-ups and close every connection."""
        if self.tokens is not None:
            await self.tokens.keys.stop()
        await self.heartbeat.stop()
        await self.run_waits.stop()
        await self.last_used.stop()
        await self.assemblies.stop()
        await self.usages.stop()
        await self.wakeups.stop()
        await self.gateway_outcomes.stop()
        await self.rate_limits.stop()
        await self.metrics.pools.stop()
        await self.pool.close()
        await self.engine.dispose()
        await self._erasures.dispose()
        TRACING.stop()

    async def run(
        self,
        tenant_id: UUID,
        query: Callable[Concatenate[Connection, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run a query of the store in a transaction of its own, on behalf of a tenant."""
        with self.metrics.pools.query():
            return await self._run(self._admission, self.engine, tenant_id, query, *args, **kwargs)

    async def erase(
        self,
        tenant_id: UUID,
        query: Callable[Concatenate[Connection, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run a query that erases, as `run` does the others, however long it takes."""
        return await self._run(self._erasures_admission, self._erasures, tenant_id, query, *args, **kwargs)

    async def _run(
        self,
        admission: Admission,
        database: AsyncEngine,
        tenant_id: UUID,
        query: Callable[Concatenate[Connection, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Apart from `run_without_tenant` the one place where a request's transaction begins and ends.

        The two hot calls are one statement each.
        """
        with noting_ended_runs() as ended:
            async with admission, async_transaction(database, tenant_id) as connection:
                result = await connection.run_sync(query, *args, **kwargs)
            for run in ended:
                self.metrics.run_ended(run)
            return result

    async def run_without_tenant(self, query: Callable[[Connection], R]) -> R:
        """Run a query of the store for no tenant: it sees no tenant's rows."""
        with self.metrics.pools.query():
            async with self._admission, self.engine.begin() as connection:
                return await connection.run_sync(query)
