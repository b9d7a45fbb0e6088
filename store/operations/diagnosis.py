"""What the database tells of how an installation is set up: versions, roles, row-level security, clocks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

import asyncpg
from sqlalchemy import Connection, text

from store.engine import CONNECT_SECONDS
from store.hosts import asyncpg_connector
from store.tables import metadata

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from runtime.settings import Settings

_SERVER: Final = text("""
    select current_setting('server_version') as version, current_setting('server_version_num')::integer as number,
           clock_timestamp() as now, pg_backend_pid() as pid, current_setting('max_connections')::integer as allowed,
           -- The kind of other logins' backends is hidden from whoever is no superuser; these two columns are not.
           (select count(*) from pg_stat_activity where datid is not null and usesysid is not null) as used,
           pg_is_in_recovery() as is_standby
""")
_HOLDERS: Final = text("""
    select holder.pid, coalesce(a.usename, 'a prepared transaction') as login, a.application_name as application,
           count(distinct w.pid) as waiting,
           max(extract(epoch from clock_timestamp() - w.waitstart))::float8 as waiting_seconds
    from pg_locks as w cross join lateral unnest(pg_blocking_pids(w.pid)) as holder (pid)
    left join pg_stat_activity as a on a.pid = holder.pid
    where not w.granted and w.waitstart < clock_timestamp() - make_interval(secs => :seconds)
        and not exists (select from pg_locks as b where b.pid = holder.pid and not b.granted)
    group by 1, 2, 3 order by 5 desc, 1
""")
_LOCK_PATIENCE: Final = text("select set_config('lock_timeout', :patience, true)")
_ROLE: Final = text("""
    select r.rolsuper as is_superuser, r.rolbypassrls as bypasses,
           (select count(*) from pg_class as c where c.relowner = r.oid and c.relkind = 'r'
                and c.relname = any (:tables)) as owned
    from pg_roles as r where r.rolname = :role
""")
_TABLES: Final = text("""
    select c.relname as name, c.relrowsecurity and c.relforcerowsecurity as is_forced
    from pg_class as c where c.relkind = 'r' and c.relnamespace = 'public'::regnamespace and c.relname = any (:tables)
""")
_BROKEN_INDEXES: Final = text("""
    select i.indexrelid::regclass::text from pg_index as i join pg_class as c on c.oid = i.indrelid
    where c.relnamespace = 'public'::regnamespace and not i.indisvalid order by 1
""")
_PROCESSES: Final = text("""
    select id, kind, host, pid, queues, version, slots, busy, started_at, summarizer, model,
           extract(epoch from now() - seen_at)::float8 as seen_seconds,
           extract(epoch from now() - oldest_task_at)::float8 as oldest_task_seconds
    from processes order by kind, host, pid
""")


class Server(NamedTuple):
    """A Postgres server, as it says of itself."""

    version: str
    number: int
    """As `server_version_num`: 150004 is 15.4."""
    now: datetime
    pid: int
    """Of the process that answers; another one than the connection was told means that a pooler stands between."""
    allowed: int
    """Connections at most."""
    used: int
    is_standby: bool


class LockHolder(NamedTuple):
    """A session that others wait for, and that waits for no lock itself."""

    pid: int
    """0 for a prepared transaction, which has none."""
    login: str
    application: str | None
    waiting: int
    waiting_seconds: float


class Role(NamedTuple):
    """What row-level security makes of a role: a superuser, one that bypasses it and a tables' owner are not bound."""

    is_superuser: bool
    bypasses: bool
    owned: int
    """Tables that are its own."""


class ProcessSeen(NamedTuple):
    """A process, also one that has not been heard of for some time; times in seconds."""

    id: UUID
    kind: str
    host: str
    pid: int
    queues: list[str]
    version: str
    slots: int
    busy: int
    started_at: datetime
    summarizer: str | None
    """What it makes summaries with, None for one that does not say."""
    model: str | None
    seen_seconds: float
    oldest_task_seconds: float | None


def server(connection: Connection) -> Server:
    """Return what the server says of itself."""
    return Server(*connection.execute(_SERVER).one())


def bound_lock_waits(connection: Connection, seconds: int) -> None:
    """Have each statement of the transaction that is under way fail after so long a wait for a lock."""
    connection.execute(_LOCK_PATIENCE, {"patience": f"{seconds}s"})


def holders(connection: Connection, seconds: float) -> list[LockHolder]:
    """Return the sessions whose locks others have waited for that long; any login is shown them."""
    return [LockHolder(*row) for row in connection.execute(_HOLDERS, {"seconds": seconds})]


def role(connection: Connection, name: str) -> Role | None:
    """Return what a role may do, None if there is none of that name."""
    row = connection.execute(_ROLE, {"role": name, "tables": list(metadata.tables)}).one_or_none()
    return None if row is None else Role(*row)


def current_role(connection: Connection) -> str:
    """Return the role that the connection acts in."""
    return str(connection.scalar(text("select current_user")))


def act_as(connection: Connection, name: str) -> None:
    """Take on a role for the rest of the connection. Raises DBAPIError where the login may not."""
    connection.execute(text("select set_config('role', :name, false)"), {"name": name})


def refusal(settings: Settings) -> str | None:
    """Return the SQLSTATE with which the server refuses a connection; None without a server, or if it refuses none."""

    async def connect() -> None:
        connection = await asyncpg_connector(settings, timeout=CONNECT_SECONDS)()
        await connection.close()

    try:
        asyncio.run(connect())
    except asyncpg.PostgresError as error:
        state: str | None = error.sqlstate
        return state
    except (OSError, TimeoutError, ValueError, asyncpg.InterfaceError, asyncpg.InternalClientError):
        return None
    return None


def tenant_tables() -> list[str]:
    """Return the tables that hold what is a tenant's."""
    return sorted(name for name, table in metadata.tables.items() if "tenant_id" in table.c or name == "tenants")


def unguarded_tables(connection: Connection) -> list[str]:
    """Return the tables of tenants, as far as they are there, on which row-level security is not forced."""
    rows = connection.execute(_TABLES, {"tables": tenant_tables()})
    return sorted(row.name for row in rows if not row.is_forced)


def broken_indexes(connection: Connection) -> list[str]:
    """Return the indexes that no query uses: broken off while they were built, or being built now."""
    return list(connection.execute(_BROKEN_INDEXES).scalars())


def sees_somebodys_rows(connection: Connection) -> bool:
    """Tell whether a transaction that acts for no tenant sees a conversation all the same."""
    return bool(connection.scalar(text("select exists (select from conversations)")))


class OverByFixed(NamedTuple):
    """Conversations in which system prompt and tools alone are over a threshold."""

    threshold: int
    """Over `compaction_threshold_tokens`."""
    budget: int
    """Over `input_token_budget`."""


def over_by_fixed(connection: Connection, *, threshold: int, budget: int) -> OverByFixed:
    """Count them, of all tenants, where no policy says otherwise by the installation's thresholds."""
    given = {"threshold": threshold, "budget": budget}
    return OverByFixed(*connection.execute(text("select * from over_by_fixed(:threshold, :budget)"), given).one())


def processes_seen(connection: Connection) -> list[ProcessSeen]:
    """Return the processes that have a row."""
    return [ProcessSeen(*row) for row in connection.execute(_PROCESSES)]
