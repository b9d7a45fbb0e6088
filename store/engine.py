"""Engines and connections.

The line between the two drivers is here and nowhere else: `store.hot_path` runs the two calls of every chat turn on a
bare asyncpg pool; everything else is SQLAlchemy, with asyncpg under the API and psycopg under workers and commands.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import InvalidatePoolError, OperationalError

from store.hosts import (
    READ_ONLY,
    Hosts,
    are_asked,
    asyncpg_connector,
    asyncpg_faults,
    require_writes,
    require_writes_async,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from uuid import UUID

    from sqlalchemy import URL, ExceptionContext
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
    from sqlalchemy.pool import ConnectionPoolEntry

    from runtime.settings import Settings

CONNECT_SECONDS: Final = 1.0
"""Seconds that a request waits for a connection, for a new one to open, and for one to say that it takes writes."""
COMMAND_SECONDS: Final = 10.0
"""Seconds that a statement of a request may take."""
ERASE_SECONDS: Final = 600.0
"""Seconds that an erasure may: it removes all of a conversation in one statement, however long that is."""
IDLE_TIMEOUT: Final = "60s"
"""How long a transaction may rest, as Postgres has it: who stops in the midst of one does not keep what it locked."""
TRUSTED_SECONDS: Final = 5.0
"""Seconds for which a connection that answered is taken to answer again, unless it was closed."""
_HOST_SECONDS: Final = 10
"""Seconds that a worker or a command waits for a host."""
_HOST_OF_SEVERAL_SECONDS: Final = 2
"""The same where there are others to ask; psycopg knows no shorter wait."""
_KEEPALIVE: Final = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "2",
    "tcp_user_timeout": "20000",
}
"""A host that is gone without a word counts as away after 20 s; the kernel by itself waits for a quarter of an hour."""

_USED: Final = "used"
_LOST: Final = frozenset({READ_ONLY, "25P03"})
"""SQLSTATEs after which a connection is of no use: its server became read-only, its transaction rested too long."""
_ONE_MOMENT = text("set transaction isolation level repeatable read, read only")
_SET_TENANT = text("select set_config('app.tenant_id', :tenant, true)")
_SET_BOUNDED = text(
    "select set_config('app.tenant_id', :tenant, true),"
    " set_config('idle_in_transaction_session_timeout', :idle_timeout, true),"
    " set_config('lock_timeout', coalesce(:lock_timeout, current_setting('lock_timeout')), true)"
)


def owner_engine(database_url: str) -> Engine:
    """Return an engine that acts as the URL's own login: for migrations and administration."""
    return _psycopg_engine(database_url, "palimpsest-admin", pool_size=1)


def service_engine(settings: Settings, name: str) -> Engine:
    """Return the engine of a worker, a sweeper or a command, in the role of the service.

    `name` shows as application_name in pg_stat_activity.
    """
    return _psycopg_engine(
        settings.database_url.get_secret_value(),
        f"palimpsest-{name}",
        pool_pre_ping=True,
        pool_size=settings.database_pool_size,
        max_overflow=0,
        pool_timeout=30,
        connect_args={
            "options": f"-c role={settings.database_role}" if settings.database_role else "",
            # Poolers in transaction mode hand every transaction another server connection.
            "prepare_threshold": None,
        },
    )


def _psycopg_engine(
    database_url: str,
    application: str,
    *,
    pool_pre_ping: bool = False,
    connect_args: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> Engine:
    hosts = Hosts(database_url)
    patience = _HOST_SECONDS if len(hosts.urls) == 1 else _HOST_OF_SEVERAL_SECONDS
    given = {key: value for key, value in _KEEPALIVE.items() if key not in hosts.urls[0].query}
    engine = create_engine(
        hosts.urls[0].set(drivername="postgresql+psycopg"),
        hide_parameters=True,
        # Whoever is asked whether it takes writes need not be asked besides whether it answers.
        pool_pre_ping=pool_pre_ping and not hosts.are_asked,
        connect_args={"application_name": application, "connect_timeout": patience, **given, **connect_args},
        **options,
    )
    event.listen(engine, "handle_error", _leave_lost)
    if len(hosts.urls) > 1:

        @event.listens_for(engine, "do_connect")
        def connect(dialect: Any, _: Any, places: Any, arguments: dict[str, Any]) -> Any:
            def connect_to(url: URL) -> Any:
                connection = dialect.connect(*places, **{**arguments, **dialect.create_connect_args(url)[1]})
                try:
                    if hosts.are_asked:
                        require_writes(connection)
                except BaseException:
                    connection.close()
                    raise
                return connection

            return hosts.connect(connect_to, dialect.loaded_dbapi.Error)

    if hosts.are_asked:
        event.listen(engine, "checkin", _note_use)
        event.listen(engine, "checkout", _refuse_read_only(require_writes, engine.dialect.loaded_dbapi.Error))
    return engine


def service_async_engine(
    settings: Settings, *, pool_size: int | None = None, command_seconds: float | None = None
) -> AsyncEngine:
    """Return an engine of the API for other things than the two hot calls.

    `pool_size` and `command_seconds` are for another than the one that nearly all of them share.
    """
    # Only the API has it; workers would load the ORM with it.
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

    engine = create_async_engine(
        "postgresql+asyncpg://",
        hide_parameters=True,
        pool_size=pool_size or settings.database_pool_size,
        max_overflow=0,
        pool_timeout=CONNECT_SECONDS,
        async_creator=asyncpg_connector(
            settings,
            timeout=CONNECT_SECONDS,
            command_timeout=command_seconds or COMMAND_SECONDS,
            server_settings=server_settings(settings, "api"),
        ),
    )
    event.listen(engine.sync_engine, "checkin", _note_use)
    if are_asked(settings):

        async def require(connection: Any) -> None:
            async with asyncio.timeout(CONNECT_SECONDS):
                await require_writes_async(connection)

        refuse = _refuse_read_only(lambda connection: connection.run_async(require), *asyncpg_faults())
        event.listen(engine.sync_engine, "checkout", refuse)
    else:
        event.listen(engine.sync_engine, "checkout", _refuse_dead)
    event.listen(engine.sync_engine, "handle_error", _leave_lost)
    return engine


def _leave_lost(context: ExceptionContext) -> OperationalError | None:
    """Take a server that takes no writes any more, or has ended a transaction that rested, for one that is away."""
    if getattr(context.original_exception, "sqlstate", None) not in _LOST or context.connection is None:
        return None
    context.is_disconnect = True
    return OperationalError(
        context.statement, None, context.original_exception, hide_parameters=True, connection_invalidated=True
    )


def _note_use(_: Any, record: ConnectionPoolEntry) -> None:
    record.info[_USED] = monotonic()


def _refuse_dead(connection: Any, record: ConnectionPoolEntry, _: Any) -> None:
    """Raise InvalidatePoolError for a connection that is closed, or has been idle and answers no more.

    The pool opens another one then. Its own `pool_pre_ping` makes three round trips for each transaction, as much as
    many of them have by themselves; a server that restarts or a proxy that gives up closes what is open.
    """
    if _USED not in record.info:
        return  # It has just been opened.
    if connection.driver_connection.is_closed():
        raise InvalidatePoolError
    if monotonic() - record.info[_USED] > TRUSTED_SECONDS:
        try:
            connection.ping()
        except (connection.dbapi.Error, OSError):
            raise InvalidatePoolError from None


def _refuse_read_only(
    require: Callable[[Any], None], *faults: type[Exception]
) -> Callable[[Any, ConnectionPoolEntry, Any], None]:
    """Return what raises InvalidatePoolError for a connection whose server does not say that it takes writes.

    One that has just been opened was asked then, and is used in any case: the pool opens two of them at most, and
    blames its caller for the second that is refused.
    """

    def refuse(connection: Any, record: ConnectionPoolEntry, _: Any) -> None:
        if _USED in record.info:
            try:
                require(connection)
            except faults:
                raise InvalidatePoolError from None

    return refuse


def server_settings(settings: Settings, name: str) -> dict[str, str]:
    """Return what an asyncpg connection tells the server when it starts."""
    parameters = {"application_name": f"palimpsest-{name}", "jit": "off"}
    if settings.database_role:
        parameters["role"] = settings.database_role
    return parameters


@contextmanager
def transaction(engine: Engine, tenant_id: UUID | None, *, one_moment: bool = False) -> Iterator[Connection]:
    """Open a transaction on behalf of a tenant (None = on nobody's, for functions that look across).

    With `one_moment` every statement sees the database as it was at the first.
    """
    with engine.begin() as connection:
        if one_moment:
            connection.execute(_ONE_MOMENT)
        if tenant_id is not None:
            act_for(connection, tenant_id)
        yield connection


@contextmanager
def bounded_transaction(
    engine: Engine, tenant_id: UUID | None, *, one_moment: bool = False, lock_timeout: str | None = None
) -> Iterator[Connection]:
    """Open a worker's transaction as `transaction` does; one that rests for IDLE_TIMEOUT ends with an error.

    So does one that waits for a lock for as long as `lock_timeout` says, if that is given.
    """
    with engine.begin() as connection:
        if one_moment:
            connection.execute(_ONE_MOMENT)
        connection.execute(_SET_BOUNDED, _bounds(tenant_id, lock_timeout))
        yield connection


def act_for(connection: Connection, tenant_id: UUID) -> None:
    """Do the rest of a transaction on behalf of a tenant: row-level security binds the tables' owner as well."""
    connection.execute(_SET_TENANT, {"tenant": str(tenant_id)})


@asynccontextmanager
async def async_transaction(engine: AsyncEngine, tenant_id: UUID) -> AsyncIterator[AsyncConnection]:
    """Open a request's transaction on behalf of a tenant."""
    async with engine.begin() as connection:
        await connection.execute(_SET_BOUNDED, _bounds(tenant_id))
        yield connection


def _bounds(tenant_id: UUID | None, lock_timeout: str | None = None) -> dict[str, str | None]:
    tenant = "" if tenant_id is None else str(tenant_id)
    return {"tenant": tenant, "idle_timeout": IDLE_TIMEOUT, "lock_timeout": lock_timeout}
