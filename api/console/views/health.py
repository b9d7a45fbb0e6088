"""Whether the installation does its work: each queue with who serves it and what waits, and every process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from runtime.broker import QUEUES
from runtime.queues import Queue
from store.operations.processes import MISSED_BEATS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actions.background.gateway_outcomes import Outcomes
    from actions.monitoring.alerts import Alert
    from actions.monitoring.installation import Seen
    from store.operations.diagnosis import ProcessSeen

Level = Literal["well", "late", "missing"]


class Part(NamedTuple):
    """A queue, or the sweep: who is there to do it, and what waits for it (None = not known, or nothing can wait)."""

    name: str
    level: Level
    alive: int
    slots: int
    busy: int
    waiting: int | None = None
    oldest_seconds: float | None = None
    messages: int | None = None
    """Messages in the broker that nobody has taken."""


class Seat(NamedTuple):
    """A process that said of itself that it is there, and whether it still does."""

    process: ProcessSeen
    is_alive: bool


class Health(NamedTuple):
    """The installation at a moment."""

    parts: Sequence[Part]
    seats: Sequence[Seat]
    alerts: Sequence[Alert]
    is_broker_known: bool
    gateways: Outcomes | None = None

    @property
    def level(self) -> Level:
        """How it is on the whole."""
        if any(alert.severity == "page" for alert in self.alerts):
            return "missing"
        return "late" if self.alerts else "well"


def health(seen: Seen, processes: Sequence[ProcessSeen], alerts: Sequence[Alert], beat_seconds: float) -> Health:
    """Return the installation as it was seen; a process is gone that has missed several heartbeats."""
    seats = [Seat(each, each.seen_seconds <= beat_seconds * MISSED_BEATS) for each in processes]
    there = [seat.process for seat in seats if seat.is_alive]
    parts = []
    for queue in QUEUES:
        workers = [each for each in there if each.kind == "worker" and queue in each.queues]
        waits = None if seen.waiting is None else seen.waiting[queue]
        waiting, oldest = (None, None) if waits is None else waits
        if queue == Queue.CHECKS and seen.backlog is not None:
            waiting = (waiting or 0) + seen.backlog.due_checks
            oldest = max(oldest or 0.0, seen.backlog.oldest_due_check_seconds)
        messages = None if seen.depths is None else seen.depths[queue]
        parts.append(
            Part(
                queue,
                _level(workers, alerts, queue),
                len(workers),
                sum(each.slots for each in workers),
                sum(each.busy for each in workers),
                waiting,
                oldest if waiting else None,
                messages,
            )
        )
    beats = [each for each in there if each.kind == "beat"]
    parts.append(Part("sweep", _level(beats, alerts, "sweep"), len(beats), 0, 0))
    return Health(parts, seats, alerts, seen.depths is not None, seen.gateways)


_ABOUT = {
    "checks": ("ChecksLate", "ChecksPileUp", "QueueDeep"),
    "summaries": ("RunsWait", "QueueDeep"),
    "sweep": ("LeasesExpired",),
}
"""Alerts that say of a part that it does not keep up."""


def _level(there: Sequence[ProcessSeen], alerts: Sequence[Alert], part: str) -> Level:
    if not there:
        return "missing"
    is_late = any(
        alert.name in _ABOUT[part] and (alert.name != "QueueDeep" or part in alert.summary) for alert in alerts
    )
    return "late" if is_late else "well"
