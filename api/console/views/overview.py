"""The overview's figures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from api.console.views.scales import Tick, nice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from store.console import Overview
    from store.tables import AnyRow

WIDTH: Final = 560
HEIGHT: Final = 190
LEFT, RIGHT, TOP, BOTTOM = 46, 4, 12, 24
"""Room around the days' bars for scales, in the units of the drawing."""
_TICKS: Final = 3
_LABELS_AT_MOST: Final = 8
_WIDEST: Final = 36
_STATES = ("committed", "skipped", "failed", "dead", "running", "queued")


class Outcome(NamedTuple):
    """How many runs are in a state, and where its part of the bar is, in percent."""

    state: str
    runs: int
    start: float
    length: float


class Day(NamedTuple):
    """A day's bar, in the units of the drawing; a label stands under some of them."""

    day: date
    runs: int
    tokens_saved: int
    x: float
    y: float
    height: float
    label: str


class Days(NamedTuple):
    """The bars of the days and their scale."""

    width: int
    height: int
    left: int
    right: int
    bottom: int
    bar: float
    bars: Sequence[Day]
    rows: Sequence[Tick]


class Figures(NamedTuple):
    """What the overview shows."""

    totals: AnyRow
    runs: int
    outcomes: Sequence[Outcome]
    reasons: Sequence[AnyRow]
    days: Days


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
    return Figures(overview.totals, runs, outcomes, overview.reasons, _days(overview.days))


def _days(rows: Sequence[AnyRow]) -> Days:
    step = nice(max([row.tokens_saved for row in rows] + [_TICKS]) / _TICKS)
    most = step * max(1, math.ceil(max((row.tokens_saved for row in rows), default=0) / step))
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(rows))
    bar = min(_WIDEST, 0.7 * slot)
    bottom = HEIGHT - BOTTOM
    spacing = math.ceil(len(rows) / _LABELS_AT_MOST)
    bars = []
    for number, row in enumerate(rows):
        height = (bottom - TOP) * row.tokens_saved / most
        is_labelled = (len(rows) - 1 - number) % spacing == 0
        x = LEFT + slot * (number + 0.5) - bar / 2
        label = f"{row.day.day} {row.day:%b}" if is_labelled else ""
        bars.append(Day(row.day, row.runs, row.tokens_saved, round(x, 1), bottom - height, height, label))
    ticks = [Tick(round(bottom - (bottom - TOP) * value / most, 1), value) for value in range(0, most + 1, step)]
    return Days(WIDTH, HEIGHT, LEFT, WIDTH - RIGHT, bottom, bar, bars, ticks)
