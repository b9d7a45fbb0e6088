"""The overview's figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from store.console import Overview
    from store.tables import AnyRow

_STATES = ("committed", "skipped", "failed", "dead", "running", "queued")


class Outcome(NamedTuple):
    """How many runs are in a state, and where its part of the bar is, in percent."""

    state: str
    runs: int
    start: float
    length: float


class Day(NamedTuple):
    """A day's bar; `height` in percent of the largest."""

    day: date
    runs: int
    tokens_saved: int
    height: float


class Figures(NamedTuple):
    """What the overview shows."""

    totals: AnyRow
    runs: int
    outcomes: Sequence[Outcome]
    reasons: Sequence[AnyRow]
    days: Sequence[Day]


def figures(overview: Overview) -> Figures:
    """Return the figures ready to be drawn."""
    counts = {row.state: row.runs for row in overview.by_state}
    runs = sum(counts.values())
    outcomes: list[Outcome] = []
    start = 0.0
    for state in _STATES:
        length = 100 * counts.get(state, 0) / max(1, runs)
        outcomes.append(Outcome(state, counts.get(state, 0), start, length))
        start += length
    most = max((row.tokens_saved for row in overview.days), default=0)
    days = [Day(row.day, row.runs, row.tokens_saved, 100 * row.tokens_saved / max(1, most)) for row in overview.days]
    return Figures(overview.totals, runs, outcomes, overview.reasons, days)
