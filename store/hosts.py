"""Connecting to whichever of a database's hosts takes writes.

By themselves both drivers try the hosts in the URL's order, each time anew: one that is dead and refuses nothing costs
every connection its whole patience, and asyncpg, which counts that over all hosts, never comes to another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from runtime.addresses.database_url import hosts_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import asyncpg
    from sqlalchemy import URL

    from runtime.settings import Settings

T = TypeVar("T")

READ_ONLY: Final = "25006"
"""SQLSTATE of a server that takes no writes: a standby, or a primary that has become one."""


class Hosts:
    """The hosts of a database's URL; who was at fault last is asked last. Safe to use from many threads."""

    def __init__(self, database_url: str) -> None:
        self.urls = hosts_of(database_url)
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


def is_one_of_several(settings: Settings) -> bool:
    """Tell whether the database that is connected to is one of several hosts."""
    return len(hosts_of(settings.database_url.get_secret_value())) > 1


def tells_read_only(setting: Callable[[str], str | None]) -> bool:
    """Tell whether a server has let its connection know that it takes no writes; of one as the driver has it."""
    return setting("in_hot_standby") == "on" or setting("default_transaction_read_only") == "on"


def has_become_read_only(connection: asyncpg.Connection) -> bool:
    """Tell the same of an asyncpg connection."""
    settings = connection.get_settings()
    return tells_read_only(lambda name: getattr(settings, name, None))


def asyncpg_connector(
    settings: Settings, *, timeout: float, **options: Any
) -> Callable[[], Awaitable[asyncpg.Connection]]:
    """Return what opens an asyncpg connection; `timeout` seconds are for all hosts together."""
    # Workers have the other driver.
    import asyncpg  # noqa: PLC0415

    hosts = Hosts(settings.database_url.get_secret_value())
    faults = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
    # The driver reads the URL by itself: SQLAlchemy would hand it `sslmode` under a name it does not know.
    options["timeout"] = timeout / len(hosts.urls)

    def connect_to(url: URL) -> Awaitable[asyncpg.Connection]:
        dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
        opened: Awaitable[asyncpg.Connection] = asyncpg.connect(dsn, **options)
        return opened

    async def connect() -> asyncpg.Connection:
        return await hosts.connect_async(connect_to, *faults)

    return connect
