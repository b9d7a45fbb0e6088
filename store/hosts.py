"""Connecting to whichever of a database's hosts takes writes.

By themselves both drivers try the hosts in the URL's order, each time anew: one that is dead and refuses nothing costs
every connection its whole patience, and asyncpg, which counts that over all hosts, never comes to another one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from runtime.addresses.database_url import hosts_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import asyncpg
    import psycopg
    from sqlalchemy import URL

    from runtime.settings import Settings

T = TypeVar("T")

READ_ONLY: Final = "25006"
"""SQLSTATE of a server that takes no writes: a standby, or a primary that has become one."""
_TAKES_NO_WRITES: Final = "the server takes no writes"
_ASK: Final = "show transaction_read_only"
"""Servers also say so by themselves (`in_hot_standby`), but a pooler repeats what its server said once, of old."""
_PRIMARY: Final = frozenset({"read-write", "primary"})
"""What `target_session_attrs` says where only a server will do that takes writes."""


class Hosts:
    """The hosts of a database's URL; who was at fault last is asked last. Safe to use from many threads."""

    def __init__(self, database_url: str) -> None:
        urls = hosts_of(database_url)
        self.are_asked = len(urls) > 1 and urls[0].query.get("target_session_attrs") in _PRIMARY
        """Whether a server has to say that it takes writes, before it is used and while it is."""
        self.urls = (
            tuple(url.difference_update_query(["target_session_attrs"]) for url in urls) if self.are_asked else urls
        )
        """Of each host, the next one to be asked first."""

    def connect(self, connect: Callable[[URL], T], *faults: type[Exception]) -> T:
        """Return what `connect` returns for the first host that will do; raise what the last one's raises.

        faults: what the driver raises when it cannot connect.
        """
        *others, last = self.urls
        for url in others:
            try:
                return connect(url)
            except faults:
                self._put_last(url)
        return connect(last)

    async def connect_async(self, connect: Callable[[URL], Awaitable[T]], *faults: type[Exception]) -> T:
        """Do as `connect` does."""
        *others, last = self.urls
        for url in others:
            try:
                return await connect(url)
            except BaseException as error:
                # Also where the caller has gone: whoever comes next shall not wait for the same host.
                self._put_last(url)
                if not isinstance(error, faults):
                    raise
        return await connect(last)

    def _put_last(self, url: URL) -> None:
        self.urls = (*(each for each in self.urls if each is not url), url)


def are_asked(settings: Settings) -> bool:
    """Tell whether the database has several hosts, which are asked whether they take writes."""
    return Hosts(settings.database_url.get_secret_value()).are_asked


def require_writes(connection: psycopg.Connection[Any]) -> None:
    """Ask the server of a connection, between two transactions, whether it takes writes.

    Raises psycopg.OperationalError where it does not, and what the driver raises.
    """
    # The API has the other driver.
    import psycopg  # noqa: PLC0415

    # In no transaction: that would be two more round trips.
    connection.autocommit = True
    row = connection.execute(_ASK).fetchone()
    connection.autocommit = False
    if row != ("off",):
        raise psycopg.OperationalError(_TAKES_NO_WRITES)


async def require_writes_async(connection: asyncpg.Connection) -> None:
    """Do the same; raises asyncpg.ReadOnlySQLTransactionError where it does not."""
    # Workers have the other driver.
    import asyncpg  # noqa: PLC0415

    if await connection.fetchval(_ASK) != "off":
        raise asyncpg.ReadOnlySQLTransactionError(_TAKES_NO_WRITES)


def asyncpg_faults() -> tuple[type[Exception], ...]:
    """Return what asyncpg raises that cannot connect, or whose server does not answer."""
    import asyncpg  # noqa: PLC0415

    return (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


def asyncpg_connector(
    settings: Settings, *, timeout: float, **options: Any
) -> Callable[[], Awaitable[asyncpg.Connection]]:
    """Return what opens an asyncpg connection; `timeout` seconds are for all hosts together."""
    import asyncpg  # noqa: PLC0415

    hosts = Hosts(settings.database_url.get_secret_value())
    patience = timeout / len(hosts.urls)

    async def connect_to(url: URL) -> asyncpg.Connection:
        # The driver reads the URL by itself: SQLAlchemy would hand it `sslmode` under a name it does not know.
        dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
        async with asyncio.timeout(patience):
            connection = await asyncpg.connect(dsn, **options)
            if hosts.are_asked:
                try:
                    await require_writes_async(connection)
                except BaseException:
                    connection.terminate()
                    raise
        return connection

    async def connect() -> asyncpg.Connection:
        return await hosts.connect_async(connect_to, *asyncpg_faults())

    return connect
