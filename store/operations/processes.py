"""Processes of an installation: what each last said of itself, and what all of them have left to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from sqlalchemy import Connection, delete, func, insert, select, text, update

from store.tables import processes

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime
    from uuid import UUID

ServerKind = Literal["api", "gateway"]
"""Processes that answer requests. They hold no leases, and only people are shown whether they are alive."""
Kind = Literal["worker", "sweeper", ServerKind]

MISSED_BEATS: Final = 3
"""Heartbeats that a process may miss before it counts as gone, and its runs go to others."""
FORGOTTEN_SECONDS: Final = 600.0
"""Seconds after which the sweeper removes the row of a process that is gone."""

_p = processes.c
_before = processes.alias("before").c
"""The row as it was, beside the one that is written: no further statement asks for it."""
_EXPIRE: Final = text("select expire_leases(:process, cast(:workers as text[]))")
_EXPIRE_MISSED: Final = text("select * from expire_missed_leases(:beats, :beat, :watched, :lease)")


class Process(NamedTuple):
    """What a process is; `slots` are the tasks it can work on at a time, the summarizer is that of its environment."""

    id: UUID
    kind: Kind
    host: str
    pid: int
    queues: Sequence[str]
    version: str
    slots: int
    summarizer: str | None = None
    model: str | None = None
    place: str | None = None
    """Where process ids mean the same as they do there, None where that is not to be known."""
    pid_started: int | None = None
    """When it began, in ticks since the boot of its place: another process may be given its id later."""
    beat_seconds: float | None = None
    """Seconds between two of its heartbeats."""


class Activity(NamedTuple):
    """What a process is at: tasks under way, and the seconds since the oldest of them began."""

    busy: int = 0
    oldest_seconds: float | None = None


class Beat(NamedTuple):
    """When a process is told to be alive, and when it was the last time that the database knows of; by its clock."""

    at: datetime
    before: datetime | None
    """Where it has no row, yet or any more, when any process was; None where none has."""


class Backlog(NamedTuple):
    """What is left to do, over all tenants."""

    due_checks: int
    oldest_due_check_seconds: float
    queued_runs: int
    running_runs: int
    expired_leases: int
    dead_runs: int


def beat(connection: Connection, process: Process, activity: Activity) -> Beat:
    """Tell that a process is alive, and what it is at; its row is made where there is none (any more)."""
    state: dict[str, Any] = {
        "busy": activity.busy,
        "oldest_task_at": None
        if activity.oldest_seconds is None
        else func.now() - func.make_interval(0, 0, 0, 0, 0, 0, activity.oldest_seconds),
        "seen_at": func.now(),
    }
    known = update(processes).where(_p.id == process.id, _before.id == _p.id).values(**state)
    row = connection.execute(known.returning(_p.seen_at, _before.seen_at)).one_or_none()
    if row is None:
        # A database that was restored has the rows of its time.
        # Servers do not count here: one that came back first would hide what is lost.
        before = connection.scalar(select(func.max(_p.seen_at)).where(_p.kind.in_(("worker", "sweeper"))))
        made = insert(processes).values(**process._asdict(), **state).returning(_p.seen_at)
        return Beat(connection.execute(made).scalar_one(), before)
    return Beat(*row)


def leave(connection: Connection, process_id: UUID) -> int:
    """Take a process off that has ended, and have expire what leases it left; return how many."""
    expired = expire_leases(connection, process_id)
    connection.execute(delete(processes).where(_p.id == process_id))
    return expired


def expire_leases(connection: Connection, process_id: UUID, workers: Sequence[str] | None = None) -> int:
    """Have the leases of a process expire, or those of `workers` of its pool that have ended; return how many."""
    expired = connection.scalar(_EXPIRE, {"process": process_id, "workers": None if workers is None else list(workers)})
    return int(expired or 0)


def expire_missed(
    connection: Connection, beat_seconds: float, lease_seconds: float, watched_seconds: float
) -> dict[UUID, int]:
    """Have the leases expire of processes that have missed their heartbeats; return how many, by process.

    The database has answered the caller for `watched_seconds` without a break: whoever was not heard of meanwhile could
    have been. `beat_seconds` is for processes whose row is gone.
    """
    rows = connection.execute(
        _EXPIRE_MISSED,
        {"beats": MISSED_BEATS, "beat": beat_seconds, "watched": watched_seconds, "lease": lease_seconds},
    )
    return {row.process_id: row.leases for row in rows}


def at(connection: Connection, place: str) -> tuple[datetime, list[Process]]:
    """Return the database's time, and the processes that said they were at a place and have not left it."""
    now = connection.execute(select(func.now())).scalar_one()
    rows = connection.execute(select(*(_p[name] for name in Process._fields)).where(_p.place == place))
    return now, [Process(*row) for row in rows]


def of(connection: Connection, process_ids: Collection[UUID]) -> list[Process]:
    """Return those of these processes that have a row."""
    rows = connection.execute(select(*(_p[name] for name in Process._fields)).where(_p.id.in_(process_ids)))
    return [Process(*row) for row in rows]


def forget(connection: Connection, seconds: float) -> int:
    """Remove the rows of processes that were not seen for `seconds`; return how many."""
    gone = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    return connection.execute(delete(processes).where(_p.seen_at < gone)).rowcount


def alive(connection: Connection, beat_seconds: float) -> list[Process]:
    """Return the processes that were seen within the last heartbeats, which come every `beat_seconds`."""
    since = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, beat_seconds * MISSED_BEATS)
    rows = connection.execute(select(*(_p[name] for name in Process._fields)).where(_p.seen_at >= since))
    return [Process(*row) for row in rows]


def backlog(connection: Connection) -> Backlog:
    """Return what is left to do."""
    return Backlog(*connection.execute(text("select * from backlog()")).one())
