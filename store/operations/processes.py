"""Processes that serve queues or sweep: what each last said of itself, and what all of them have left to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from sqlalchemy import Connection, delete, func, insert, select, text, update

from store.tables import processes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

Kind = Literal["worker", "sweeper"]

MISSED_BEATS: Final = 3
"""Heartbeats that a process may miss before it counts as gone."""
FORGOTTEN_SECONDS: Final = 600.0
"""Seconds after which the sweeper removes the row of a process that is gone."""

_p = processes.c


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


class Backlog(NamedTuple):
    """What is left to do, over all tenants."""

    due_checks: int
    oldest_due_check_seconds: float
    queued_runs: int
    running_runs: int
    expired_leases: int
    dead_runs: int


def beat(connection: Connection, process: Process, activity: Activity) -> None:
    """Tell that a process is alive, and what it is at; its row is made where there is none (any more)."""
    state: dict[str, Any] = {
        "busy": activity.busy,
        "oldest_task_at": None
        if activity.oldest_seconds is None
        else func.now() - func.make_interval(0, 0, 0, 0, 0, 0, activity.oldest_seconds),
        "seen_at": func.now(),
    }
    if not connection.execute(update(processes).where(_p.id == process.id).values(**state)).rowcount:
        connection.execute(insert(processes).values(**process._asdict(), **state))


def leave(connection: Connection, process_id: UUID) -> None:
    """Take a process off that has ended."""
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
