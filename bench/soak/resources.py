"""What the processes of an installation hold: memory, file descriptors, connections, keys, tables; and their limits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
from psycopg import sql

from bench.soak.processes import Held, held

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import redis

    from bench.soak.installation import Installation
    from bench.soak.truth import Breaches

EVERY_SECONDS: Final = 1.0
GROWTH: Final = 1.5
GROWTH_BYTES: Final = 96 << 20
"""A part may hold so many times, and so many bytes more than, what it held after the warm-up."""
MORE_DESCRIPTORS: Final = 64
"""File descriptors that a part may have more than after the warm-up: its pools fill as they are needed.

Those of Postgres follow from its connections, which have a limit of their own."""
MORE_CONNECTIONS: Final = 16
"""Connections that all services together may have more than half as many again as after the warm-up."""
DEAD_TUPLES: Final = 100
"""Dead rows that a vacuum may leave; more of them mean that somebody holds an old transaction."""
BLOAT: Final = 4.0
BLOAT_BYTES: Final = 32 << 20
"""A table may have so many times the bytes of the values in it, and so many more."""
IDLE_SECONDS: Final = 1
"""Seconds between two statements after which a transaction is one that stays open; between some, Python reckons."""
_BEFORE: Final = "select coalesce(sum(n_dead_tup), 0)::int as dead from pg_stat_user_tables"
_BACKLOG: Final = "select due_checks, oldest_due_check_seconds as age, queued_runs, running_runs from backlog()"
_CONNECTIONS: Final = (
    "select count(*)::int as connections, count(*) filter (where state like 'idle in transaction%'"
    f" and state_change < clock_timestamp() - make_interval(secs => {IDLE_SECONDS}))::int as idle_open"
    " from pg_stat_activity where application_name like 'palimpsest-%' and datname = current_database()"
)
_TABLES: Final = (
    "select relname as name, n_live_tup::int as live, n_dead_tup::int as dead, pg_table_size(relid) as bytes,"
    " pg_indexes_size(relid) as index_bytes,"
    " array(select attname::text from pg_attribute where attrelid = relid and attnum > 0 and not attisdropped)"
    " as columns"
    " from pg_stat_user_tables order by pg_total_relation_size(relid) desc"
)


class Sample(NamedTuple):
    """One look at everything; what could not be known is None."""

    at: float
    parts: Mapping[str, Held]
    connections: int | None
    idle_in_transaction: int | None
    due_checks: int | None
    oldest_due_seconds: float | None
    active_runs: int | None


class Sampler(threading.Thread):
    """Looks every second until it is told to stop."""

    def __init__(self, installation: Installation, clock: Callable[[], float]) -> None:
        super().__init__(name="sample", daemon=True)
        self._installation = installation
        self._clock = clock
        self._done = threading.Event()
        self._connection: psycopg.Connection[dict[str, Any]] | None = None
        self.samples: list[Sample] = []

    def run(self) -> None:
        """Collect samples."""
        while not self._done.wait(EVERY_SECONDS):
            self.samples.append(self._sample())

    def stop(self) -> None:
        """End it, and wait for that."""
        self._done.set()
        self.join()
        if self._connection is not None:
            self._connection.close()

    def _sample(self) -> Sample:
        at, parts = self._clock(), {name: held(pids) for name, pids in self._installation.parts().items()}
        try:
            if self._connection is None:
                self._connection = self._installation.connect()
            backlog = self._connection.execute(_BACKLOG).fetchone() or {}
            count = self._connection.execute(_CONNECTIONS).fetchone() or {}
        except psycopg.Error:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            return Sample(at, parts, None, None, None, None, None)
        active = backlog["queued_runs"] + backlog["running_runs"]
        return Sample(
            at, parts, count["connections"], count["idle_open"], backlog["due_checks"], backlog["age"], active
        )


class Table(NamedTuple):
    """A table after a vacuum; `bytes` are those of its rows, out of line too, `value_bytes` those of its values."""

    name: str
    live: int
    dead: int
    bytes: int
    index_bytes: int
    value_bytes: int


class Tables(NamedTuple):
    """The tables after a vacuum, and the dead rows before it."""

    dead_before: int
    tables: Sequence[Table]


def vacuumed(installation: Installation) -> Tables:
    """Vacuum everything and look at what is left."""
    with installation.connect() as connection:
        before = connection.execute(_BEFORE).fetchone() or {}
        connection.execute("vacuum (analyze)")
        rows = connection.execute(_TABLES).fetchall()
        return Tables(before["dead"], [_table(connection, row, row.pop("columns")) for row in rows])


def _table(connection: psycopg.Connection[dict[str, Any]], row: Mapping[str, Any], columns: Sequence[str]) -> Table:
    sizes = [sql.SQL("coalesce(pg_column_size({}), 0)").format(sql.Identifier(column)) for column in columns]
    query = sql.SQL("select coalesce(sum({}), 0)::bigint as bytes from {}").format(
        sql.SQL(" + ").join(sizes), sql.Identifier(row["name"])
    )
    size = connection.execute(query).fetchone() or {}
    return Table(**row, value_bytes=size["bytes"])


def leftovers(installation: Installation) -> tuple[dict[str, int], int]:
    """Return the keys in Redis with their lengths, and the connections that nobody should have any more."""
    with installation.broker() as broker, installation.connect() as connection:
        keys = {str(key, errors="replace"): _length(broker, key) for key in broker.scan_iter(count=1_000)}
        row = connection.execute(_CONNECTIONS).fetchone() or {}
    return keys, row["connections"]


def check_growth(before: Sample, after: Sample, breaches: Breaches) -> None:
    """Hold what every part has in the end against what it had after the warm-up."""
    for name, now in after.parts.items():
        then = before.parts.get(name)
        if then is None:
            continue
        if now.bytes > GROWTH * then.bytes + GROWTH_BYTES:
            breaches.add("memory is bounded", name, f"{then.bytes >> 20} MB after the warm-up, now {now.bytes >> 20}")
        if name != "postgres" and now.descriptors > then.descriptors + MORE_DESCRIPTORS:
            detail = f"{then.descriptors} after the warm-up, now {now.descriptors}"
            breaches.add("file descriptors are bounded", name, detail)


def check_connections(before: Sample, after: Sample, breaches: Breaches) -> None:
    """See that at rest nobody has a transaction open, and that connections are no more than pools explain."""
    if before.connections is None or after.connections is None:
        breaches.add("resources are known", "Postgres", f"{before.connections} and {after.connections} connections")
    elif after.connections > GROWTH * before.connections + MORE_CONNECTIONS:
        detail = f"{before.connections} after the warm-up, now {after.connections}"
        breaches.add("connections are bounded", "Postgres", detail)
    if after.idle_in_transaction:
        breaches.add("no transaction stays open", "Postgres", f"{after.idle_in_transaction} are idle in one")


def check_tables(tables: Tables, breaches: Breaches) -> None:
    """See that a vacuum could remove what is dead, and that no table is mostly air."""
    for table in tables.tables:
        if table.dead > DEAD_TUPLES:
            breaches.add("vacuum removes what is dead", table.name, f"{table.dead} dead rows are left")
        if table.bytes > BLOAT * table.value_bytes + BLOAT_BYTES:
            breaches.add("tables are bounded", table.name, f"{table.bytes} bytes for {table.value_bytes} of values")


def _length(broker: redis.Redis, key: bytes) -> int:
    match broker.type(key):
        case b"list":
            return int(broker.llen(key))
        case b"hash":
            return int(broker.hlen(key))
        case b"set":
            return int(broker.scard(key))
        case b"zset":
            return int(broker.zcard(key))
    return 1
