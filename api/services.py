"""What the routes of one process share, and the request's transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, text

from api.auth import Authenticator
from api.metrics import Metrics
from api.wakeups import Wakeups
from store import hot_path
from store.engine import async_transaction, service_async_engine

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from store.settings import Settings

P = ParamSpec("P")
R = TypeVar("R")


class Services:
    """The database, the wake-ups, the metrics, and who may ask."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.engine = service_async_engine(settings)
        self.metrics = Metrics()
        self.wakeups = Wakeups(settings, self.metrics)
        self.pool: Any = None
        self.authenticator: Authenticator

    async def start(self) -> None:
        """Open what has to be open before the first request. The database need not be up yet."""
        self.pool = await hot_path.open_pool(self.settings)
        self.authenticator = Authenticator(self.pool, self.settings.policy)
        await self.wakeups.start()

    async def stop(self) -> None:
        """Send the last wake-ups and close every connection."""
        await self.wakeups.stop()
        await self.pool.close()
        await self.engine.dispose()

    async def run(
        self,
        tenant_id: UUID,
        query: Callable[Concatenate[Connection, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run a query of the store in a transaction of its own, on behalf of a tenant.

        The one place where a request's transaction begins and ends, but for the two hot calls, which are one
        statement each.
        """
        async with async_transaction(self.engine, tenant_id) as connection:
            return await connection.run_sync(query, *args, **kwargs)

    async def ping_database(self) -> None:
        """Raise if the database does not answer."""
        async with self.engine.connect() as connection:
            await connection.execute(text("select 1"))
