"""Engines and connections.

The line between the two drivers is here and nowhere else: `store.hot_path` runs the two calls of every chat turn on a
bare asyncpg pool; everything else is SQLAlchemy, with asyncpg under the API and psycopg under workers and commands.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import InvalidatePoolError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from uuid import UUID

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
    from sqlalchemy.pool import ConnectionPoolEntry

    from runtime.settings import Settings

CONNECT_SECONDS: Final = 1.0
"""Seconds that a request waits for a connection, and for a new one to open."""
COMMAND_SECONDS: Final = 10.0
"""Seconds that a statement of a request may take."""
TRUSTED_SECONDS: Final = 5.0
"""Seconds for which a connection that answered is taken to answer again, unless it was closed."""

_USED: Final = "used"
_ONE_MOMENT = text("set transaction isolation level repeatable read, read only")
_SET_TENANT = text("select set_config('app.tenant_id', :tenant, true)")


def _url(database_url: str, driver: str) -> URL:
    return make_url(database_url).set(drivername=f"postgresql+{driver}")


def owner_engine(database_url: str) -> Engine:
    """Return an engine that acts as the URL's own login: for migrations and administration."""
    return create_engine(
        _url(database_url, "psycopg"),
        hide_parameters=True,
        pool_size=1,
        connect_args={"application_name": "palimpsest-admin", "connect_timeout": 10},
    )


def service_engine(settings: Settings, name: str) -> Engine:
    """Return the engine of a worker, a sweeper or a command, in the role of the service.

    `name` shows as application_name in pg_stat_activity.
    """
    options = f"-c role={settings.database_role}" if settings.database_role else ""
    return create_engine(
        _url(settings.database_url.get_secret_value(), "psycopg"),
        hide_parameters=True,
        pool_pre_ping=True,
        pool_size=settings.database_pool_size,
        max_overflow=0,
        pool_timeout=30,
        connect_args={
            "application_name": f"palimpsest-{name}",
            "connect_timeout": 10,
            "options": options,
            # Poolers in transaction mode hand every transaction another server connection.
            "prepare_threshold": None,
        },
    )


def service_async_engine(settings: Settings) -> AsyncEngine:
    """Return the API's engine for everything but the two hot calls."""
    # Only the API has it; workers would load the ORM with it.
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

    engine = create_async_engine(
        "postgresql+asyncpg://",
        hide_parameters=True,
        pool_size=settings.database_pool_size,
        max_overflow=0,
        pool_timeout=CONNECT_SECONDS,
        connect_args={
            # The driver reads the URL by itself: SQLAlchemy would hand it `sslmode` under a name it does not know.
            "dsn": asyncpg_dsn(settings),
            "server_settings": server_settings(settings, "api"),
            "timeout": CONNECT_SECONDS,
            "command_timeout": COMMAND_SECONDS,
        },
    )
    event.listen(engine.sync_engine, "checkin", _note_use)
    event.listen(engine.sync_engine, "checkout", _refuse_dead)
    return engine


def _note_use(_: Any, record: ConnectionPoolEntry) -> None:
    record.info[_USED] = monotonic()


def _refuse_dead(connection: Any, record: ConnectionPoolEntry, _: Any) -> None:
    """Raise InvalidatePoolError for a connection that is closed, or has been idle and answers no more.

    The pool opens another one then. Its own `pool_pre_ping` makes three round trips for each transaction, as much as
    many of them have by themselves; a server that restarts or a proxy that gives up closes what is open.
    """
    if connection.driver_connection.is_closed():
        raise InvalidatePoolError
    if monotonic() - record.info.get(_USED, monotonic()) > TRUSTED_SECONDS:
        try:
            connection.ping()
        except (connection.dbapi.Error, OSError):
            raise InvalidatePoolError from None


def server_settings(settings: Settings, name: str) -> dict[str, str]:
    """Return what an asyncpg connection tells the server when it starts."""
    parameters = {"application_name": f"palimpsest-{name}", "jit": "off"}
    if settings.database_role:
        parameters["role"] = settings.database_role
    return parameters


@contextmanager
def transaction(engine: Engine, tenant_id: UUID | None, *, one_moment: bool = False) -> Iterator[Connection]:
    """Open a worker's transaction on behalf of a tenant (None = on nobody's, for functions that look across).

    With `one_moment` every statement sees the database as it was at the first.
    """
    with engine.begin() as connection:
        if one_moment:
            connection.execute(_ONE_MOMENT)
        if tenant_id is not None:
            act_for(connection, tenant_id)
        yield connection


def act_for(connection: Connection, tenant_id: UUID) -> None:
    """Do the rest of a transaction on behalf of a tenant: row-level security binds the tables' owner as well."""
    connection.execute(_SET_TENANT, {"tenant": str(tenant_id)})


@asynccontextmanager
async def async_transaction(engine: AsyncEngine, tenant_id: UUID) -> AsyncIterator[AsyncConnection]:
    """Open a request's transaction on behalf of a tenant."""
    async with engine.begin() as connection:
        await connection.execute(_SET_TENANT, {"tenant": str(tenant_id)})
        yield connection


def asyncpg_dsn(settings: Settings) -> str:
    """Return the database's URL as asyncpg takes it."""
    return (
        _url(settings.database_url.get_secret_value(), "x")
        .set(drivername="postgresql")
        .render_as_string(hide_password=False)
    )
