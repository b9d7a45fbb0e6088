"""Database faults: what a SQLSTATE means in words, and what an operator does about it.

Problems, logs, readiness, `palimpsest doctor` and the troubleshooting page use these words. The codes are those of
"PostgreSQL Error Codes", appendix A of Postgres' manual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class DatabaseFault(NamedTuple):
    """Why the database did not do what it was asked."""

    name: str
    """As readiness and logs name it."""
    words: str
    action: str
    """What an operator does."""
    is_about_writes: bool = False
    """Whether the database goes on answering reads, so that a look at it finds nothing wrong."""


DATABASE_FAULTS: Final[Mapping[str, DatabaseFault]] = {
    "53100": DatabaseFault(
        "disk_full",
        "the database's disk is full",
        "free space on the database's volume or enlarge it; writes go on by themselves",
        is_about_writes=True,
    ),
    "25006": DatabaseFault(
        "read_only",
        "the database takes no writes: it is a standby, or set to read only",
        "promote one of the hosts, or name the primary in PALIMPSEST_DATABASE_URL",
        is_about_writes=True,
    ),
    "53300": DatabaseFault(
        "too_many_connections",
        "the database takes no more connections",
        "raise max_connections, lower PALIMPSEST_DATABASE_POOL_SIZE, or put PgBouncer between (docs/deployment.md)",
    ),
    "53200": DatabaseFault(
        "out_of_memory",
        "the database is out of memory",
        "lower work_mem and shared_buffers, or give its host more memory",
    ),
    "28P01": DatabaseFault(
        "wrong_password",
        "the database refuses the password of this login",
        "correct the password in PALIMPSEST_DATABASE_URL or PALIMPSEST_DATABASE_PASSWORD",
    ),
    "28000": DatabaseFault(
        "login_refused",
        "the database does not let this login in",
        "make the login with palimpsest migrate --service-login, and allow it in pg_hba.conf",
    ),
    "3D000": DatabaseFault(
        "no_such_database",
        "the server has no database of this name",
        "create it and run palimpsest migrate, or correct PALIMPSEST_DATABASE_URL",
    ),
    "42P01": DatabaseFault("not_migrated", "a table is missing in the database", "run palimpsest migrate"),
    "42883": DatabaseFault("not_migrated", "a function is missing in the database", "run palimpsest migrate"),
    "42501": DatabaseFault(
        "no_permission",
        "the login lacks a right in the database",
        "grant palimpsest_service to it; docs/deployment.md has the logins",
    ),
    "55P03": DatabaseFault(
        "locked",
        "a row stayed locked for too long",
        "see database_locks of palimpsest doctor: a session by hand may hold it",
    ),
    "57014": DatabaseFault(
        "timed_out", "the database took too long and ended the statement", "look for slow statements and disks"
    ),
    "57P03": DatabaseFault("starting", "the database is starting or stopping", "wait; its log says why"),
    "57P01": DatabaseFault("stopped", "the database was stopped", "start it; its log says why it stopped"),
    "57P02": DatabaseFault("crashed", "the database ended after a fault", "read its log; it recovers by itself"),
    "58030": DatabaseFault("disk_failed", "the database cannot read or write its disk", "check its volume and its log"),
    "08": DatabaseFault(
        "unreachable",
        "the database cannot be reached",
        "start Postgres, or correct PALIMPSEST_DATABASE_URL (and PALIMPSEST_DATABASE_PASSWORD)",
    ),
    "40": DatabaseFault("rolled_back", "the database rolled the transaction back", "send the request again"),
}
"""By SQLSTATE, or by its class: the first two characters."""


def database_fault(error: BaseException) -> DatabaseFault | None:
    """Return what a database's error means, None for another error and for a SQLSTATE without words."""
    for state in _states(error):
        if (known := find_fault(state)) is not None:
            return known
    return None


def find_fault(state: str | None) -> DatabaseFault | None:
    """Return what a SQLSTATE means, None without words for it."""
    return DATABASE_FAULTS.get(state) or DATABASE_FAULTS.get(state[:2]) if state else None


def sqlstate(error: BaseException) -> str | None:
    """Return the SQLSTATE of a driver's error, or of the one that SQLAlchemy wrapped; None for any other error."""
    return next(_states(error), None)


def _states(error: BaseException) -> Iterator[str]:
    for each in (error, getattr(error, "orig", None), error.__cause__):
        state = getattr(each, "sqlstate", None)
        if isinstance(state, str) and state:
            yield state
