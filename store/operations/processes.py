"""Processes of an installation: what each last said of itself, and what all of them have left to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from sqlalchemy import Connection, delete, func, insert, select, text, update

from store.tables import processes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

ServerKind = Literal["api", "gateway"]
"""Processes that answer requests. They hold no leases, and only people are shown whether they are alive."""
Kind = Literal["worker", "beat", ServerKind]

MISSED_BEATS: Final = 3
"""Heartbeats that a process may miss before it counts as gone."""
FORGOTTEN_SECONDS: Final = 600.0
"""Seconds after which the sweep removes the row of a process that is gone."""

_p = processes.c
_before = processes.alias("before").c
"""The row as it was, beside the one that is written: no further statement asks for it."""
_EXPIRE: Final = text("select expire_leases(:process)")


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
        before = connection.scalar(select(func.max(_p.seen_at)).where(_p.kind.in_(("worker", "beat"))))
        made = insert(processes).values(**process._asdict(), **state).returning(_p.seen_at)
        return Beat(connection.execute(made).scalar_one(), before)
    return Beat(*row)


def leave(connection: Connection, process_id: UUID) -> None:
    """Remove the row of a process that ends, and expire what leases it left."""
    connection.execute(_EXPIRE, {"process": process_id})
    connection.execute(delete(processes).where(_p.id == process_id))


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
