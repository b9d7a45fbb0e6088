"""Bars by day, each a stack of parts, with their scale."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from api.console.views.scales import Tick, nice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

WIDTH: Final = 560
HEIGHT: Final = 190
LEFT, RIGHT, TOP, BOTTOM = 64, 34, 12, 24
"""Room around the bars for scales, in the units of the drawing."""
_TICKS: Final = 3
_LABELS_AT_MOST: Final = 7
_WIDEST: Final = 36
_SEEN: Final = 1.5
"""Units of the drawing that a part has at least where it is anything at all."""


class Part(NamedTuple):
    """What a part of a stack is of, how much, and where it is, in the units of the drawing."""

    name: str
    value: int
    y: float
    height: float


class Bar(NamedTuple):
    """A day's stack; some have a label under them."""

    day: date
    x: float
    label: str
    parts: Sequence[Part]


class Bars(NamedTuple):
    """What is drawn; `line` is where the limit is, None where there is none or it is far above everything."""

    width: int
    height: int
    left: int
    right: int
    bottom: int
    thickness: float
    bars: Sequence[Bar]
    rows: Sequence[Tick]
    line: float | None


def stacked(days: Sequence[tuple[date, Sequence[tuple[str, int]]]], limit: int | None = None) -> Bars:
    """Return the bars of days, oldest first; each has (name, value) from the bottom up. Values are whole numbers."""
    highest = max((sum(value for _, value in parts) for _, parts in days), default=0)
    # A limit far above everything would press the bars flat.
    drawn_limit = limit if limit is not None and limit <= 2 * highest else 0
    step = nice(max(highest, drawn_limit, _TICKS) / _TICKS)
    most = step * max(1, math.ceil(max(highest, drawn_limit) / step))
    bottom = HEIGHT - BOTTOM
    unit = (bottom - TOP) / most
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(days))
    thickness = min(_WIDEST, 0.7 * slot)
    spacing = math.ceil(len(days) / _LABELS_AT_MOST)
    bars = []
    for number, (day, values) in enumerate(days):
        is_labelled = (len(days) - 1 - number) % spacing == 0
        x = LEFT + slot * (number + 0.5) - thickness / 2
        bars.append(Bar(day, round(x, 1), f"{day.day} {day:%b}" if is_labelled else "", _parts(values, bottom, unit)))
    return Bars(
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        bottom=bottom,
        thickness=round(thickness, 1),
        bars=bars,
        rows=[Tick(round(bottom - unit * value, 1), value) for value in range(0, most + 1, step)],
        line=round(bottom - unit * drawn_limit, 1) if drawn_limit else None,
    )


def _parts(values: Sequence[tuple[str, int]], bottom: float, unit: float) -> list[Part]:
    parts = []
    y = bottom
    for name, value in values:
        if value > 0:
            height = max(_SEEN, unit * value)
            y -= height
            parts.append(Part(name, value, round(max(0.0, y), 1), round(height, 1)))
    return parts
