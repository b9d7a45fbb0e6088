"""What `palimpsest doctor` asks the database: version, locks, schema, roles, row-level security."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError, ProgrammingError, SQLAlchemyError

from cli.doctor.findings import ok, problem, warning
from cli.doctor.work import work_findings
from migrations.revisions import HEAD, is_enough, is_unreleased
from migrations.run import current_revision
from runtime.addresses.shown_address import DATABASE_PORT, shown_address
from runtime.database_faults import DATABASE_FAULTS, database_fault, find_fault
from store.engine import owner_engine, service_engine, transaction
from store.operations import diagnosis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from cli.doctor.findings import Finding
    from runtime.settings import Settings

OLDEST_POSTGRES: Final = 15
SKEW_SECONDS: Final = 2.0
"""Difference of two clocks from which times in logs and audit cannot be compared any more."""
LOCK_SECONDS: Final = 4
"""Longest wait for a lock; what somebody has locked for good could not be looked at ever."""
HELD_SECONDS: Final = 2.0
"""Wait for a lock from which it is told: a turn gives up after five."""
CROWDED: Final = 0.8
"""Share of the server's connections in use from which a rollout, or one more worker, may find none."""
_LOCKED: Final = "55P03"
_ISOLATION: Final = "it is what keeps one tenant's conversations from another"


def database_findings(settings: Settings) -> Iterator[Finding]:
    """Yield what is found; without a database, only that."""
    engine = owner_engine(settings.database_url.get_secret_value())
    revision: str | None = None
    try:
        with engine.connect() as connection:
            diagnosis.bound_lock_waits(connection, LOCK_SECONDS)
            yield from _server(connection, database_address(settings))
            yield from _locks(connection)
            try:
                revision = _revision(connection, settings)
                yield _schema(revision)
            except DBAPIError as error:
                connection.rollback()
                yield problem(
                    "schema",
                    f"the login may not read the schema's revision: {_reason(error)}",
                    why="it is no member of the role that services act in",
                    mend=f"grant {settings.database_role or 'palimpsest_service'} to it",
                )
            yield from _role(connection, settings)
            if revision is not None:
                yield _security(connection)
                yield _indexes(connection)
    except SQLAlchemyError as error:
        known = database_fault(error) or find_fault(diagnosis.refusal(settings)) or DATABASE_FAULTS["08"]
        what = f"{known.words}, at {database_address(settings)}: {_reason(error)}"
        yield problem("database", what, why="every call and every worker needs it", mend=known.action)
        return
    finally:
        engine.dispose()
    yield from _service(settings, readable=is_enough(revision))


def _revision(connection: Connection, settings: Settings) -> str | None:
    """Read the schema's revision as the login, or in the role that it may take on: services' logins inherit nothing."""
    try:
        return current_revision(connection)
    except ProgrammingError:
        if not settings.database_role:
            raise
        connection.rollback()
        diagnosis.act_as(connection, settings.database_role)
        return current_revision(connection)


def _reason(error: SQLAlchemyError) -> str:
    lines = str(error.orig if isinstance(error, DBAPIError) else error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def database_address(settings: Settings) -> str:
    """Return where the database is, and the variable that says so."""
    return f"{shown_address(settings.database_url.get_secret_value(), DATABASE_PORT)} (PALIMPSEST_DATABASE_URL)"


def _server(connection: Connection, address: str) -> Iterator[Finding]:
    before = datetime.now(UTC)
    server = diagnosis.server(connection)
    after = datetime.now(UTC)
    yield ok("database", f"Postgres {server.version.split()[0]} answers at {address}")
    if server.number < OLDEST_POSTGRES * 10_000:
        yield problem(
            "database_version",
            f"Postgres {server.version.split()[0]} is too old",
            why=f"the service is made for {OLDEST_POSTGRES} and newer",
            mend=f"upgrade the server to Postgres {OLDEST_POSTGRES} or newer",
        )
    if server.is_standby:
        yield problem(
            "database_primary",
            "this server is a standby",
            why="it takes no writes",
            mend="let PALIMPSEST_DATABASE_URL name the primary",
        )
    skew = max((before - server.now).total_seconds(), (server.now - after).total_seconds(), 0.0)
    yield clock("database_clock", "the database's clock", skew)
    share = server.used / server.allowed
    usage = f"{server.used:,} of {server.allowed:,} connections are in use"
    yield (
        ok("database_connections", usage)
        if share < CROWDED
        else warning(
            "database_connections",
            usage,
            why="processes that find none left answer 503, or wait",
            mend="raise max_connections, lower PALIMPSEST_DATABASE_POOL_SIZE, or put PgBouncer between "
            "(docs/deployment.md)",
        )
    )
    if (told_pid := connection.connection.dbapi_connection.info.backend_pid) != server.pid:  # type: ignore[union-attr] # psycopg's
        yield warning(
            "pooler",
            f"a pooler stands between (the connection was promised process {told_pid}, and {server.pid} answers)",
            why="migrations hold a lock over several transactions, which a pooler in transaction mode lets go of",
            mend="give `palimpsest migrate` a URL of the server itself; for the services, set the pooler as "
            "docs/deployment.md has it",
        )


def _locks(connection: Connection) -> Iterator[Finding]:
    holders = diagnosis.holders(connection, HELD_SECONDS)
    if not holders:
        yield ok("database_locks", "nobody waits for a lock")
    for each in holders:
        by = f", {each.application!r}" if each.application else ""
        session = f"process {each.pid:d} ({each.login}{by})" if each.pid else each.login
        yield problem(
            "database_locks",
            f"{each.waiting:,} sessions wait for a lock of {session}, one of them for {each.waiting_seconds:,.0f} s",
            why="turns and runs that need what it has locked wait, and are answered 503, until its transaction ends",
            mend=f"end that transaction, or as a superuser or {each.login}: select pg_terminate_backend({each.pid})"
            if each.pid
            else "commit prepared or rollback prepared: select * from pg_prepared_xacts",
        )


def clock(check: str, whose: str, skew: float) -> Finding:
    """Return what to say of a clock that is `skew` seconds away from this machine's."""
    if skew <= SKEW_SECONDS:
        return ok(check, f"{whose} agrees with this machine's")
    return warning(
        check,
        f"{whose} and this machine's are {skew:,.1f} s apart",
        why="times in logs and in the audit cannot be compared, and tokens (JWT) may count as expired",
        mend="let both take their time from the same source: timedatectl set-ntp true",
    )


def _schema(revision: str | None) -> Finding:
    if revision is None:
        return problem(
            "schema", "the database has no schema", why="there are no tables to work on", mend="palimpsest migrate"
        )
    if not is_enough(revision):
        return problem(
            "schema",
            f"the schema is at revision {revision}, and this code needs {HEAD}",
            why="calls will fail on what is not there yet",
            mend="palimpsest migrate, on a new, empty database" if is_unreleased(revision) else "palimpsest migrate",
        )
    if revision > HEAD:
        return warning(
            "schema",
            f"the schema is at revision {revision}; this code knows {HEAD}",
            why="it goes on working, but a newer release has been here",
            mend="bring this machine to the release that the others run",
        )
    return ok("schema", f"the schema is at revision {revision}, as this code needs it")


def _role(connection: Connection, settings: Settings) -> Iterator[Finding]:
    name = settings.database_role or diagnosis.current_role(connection)
    role = diagnosis.role(connection, name)
    if role is None:
        yield problem(
            "service_role",
            f"there is no role {name!r}",
            why="services act in it, so that row-level security binds them",
            mend="palimpsest migrate (or, as an administrator: create role palimpsest_service nologin)",
        )
        return
    loose = [
        reason
        for holds, reason in (
            (role.is_superuser, "is a superuser"),
            (role.bypasses, "bypasses row-level security"),
            (role.owned > 0, f"owns {role.owned:,} of the tables"),
        )
        if holds
    ]
    if loose:
        yield problem(
            "service_role",
            f"the role {name!r} {' and '.join(loose)}",
            why=f"row-level security does not bind it, and {_ISOLATION}",
            mend=f"alter role {name} nosuperuser nobypassrls; and let another role own the tables"
            if settings.database_role
            else "set PALIMPSEST_DATABASE_ROLE=palimpsest_service",
        )
    else:
        yield ok("service_role", f"the role {name!r} is bound by row-level security")


def _security(connection: Connection) -> Finding:
    if unguarded := diagnosis.unguarded_tables(connection):
        return problem(
            "row_level_security",
            f"row-level security is not forced on {', '.join(unguarded)}",
            why=_ISOLATION,
            mend="; ".join(
                f"alter table {name} enable row level security, force row level security" for name in unguarded
            ),
        )
    return ok(
        "row_level_security", f"row-level security is forced on all {len(diagnosis.tenant_tables())} tables of tenants"
    )


def _indexes(connection: Connection) -> Finding:
    if not (broken := diagnosis.broken_indexes(connection)):
        return ok("indexes", "all indexes are whole")
    return warning(
        "indexes",
        f"no query can use {', '.join(broken)}",
        why="building it was broken off, or is under way: what it is for walks all rows, and every write keeps it up",
        mend="; ".join(f"reindex index concurrently {name}" for name in broken),
    )


def _service(settings: Settings, *, readable: bool) -> Iterator[Finding]:
    """Yield what is found when the database is asked as the services ask it."""
    engine = service_engine(settings, "doctor")
    try:
        with transaction(engine, None) as connection:
            diagnosis.bound_lock_waits(connection, LOCK_SECONDS)
            acting = diagnosis.current_role(connection)
            if settings.database_role and acting != settings.database_role:
                yield problem(
                    "service_login",
                    f"services act as {acting!r}, not as {settings.database_role!r}",
                    why=_ISOLATION,
                    mend=f"alter role {acting} set role = '{settings.database_role}'",
                )
            else:
                yield ok("service_login", f"services may act as {acting!r}")
            if not readable:
                return
            if diagnosis.sees_somebodys_rows(connection):
                yield problem(
                    "isolation",
                    f"{acting!r} sees conversations without acting for a tenant",
                    why=_ISOLATION,
                    mend="see service_role and row_level_security",
                )
            yield from work_findings(connection, settings)
    except SQLAlchemyError as error:
        if getattr(getattr(error, "orig", None), "sqlstate", None) == _LOCKED:
            yield warning(
                "work",
                "somebody has locked a table that has to be read",
                why="workers, beat, due checks and dead runs could not be looked at",
                mend="see database_locks, and look again; a migration lets go within seconds",
            )
            return
        yield problem(
            "service_login",
            f"services cannot connect: {_reason(error)}",
            why=f"they act as {settings.database_role!r}, which their login has to be allowed to",
            mend=f"grant {settings.database_role} to the login of PALIMPSEST_DATABASE_URL; behind PgBouncer, see "
            "docs/deployment.md",
        )
    finally:
        engine.dispose()
