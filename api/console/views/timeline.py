"""The plot of a conversation: what it holds against what the model saw, message by message."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from api.console.views.scales import Tick, nice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from api.console.views.budgets import Line
    from store.console.timeline import Moment

WIDTH: Final = 960
HEIGHT: Final = 300
LEFT, RIGHT, TOP, BOTTOM = 56, 128, 26, 26
"""Room around the plot for scales and labels, in the units of the drawing."""
_LABEL_HEIGHT: Final = 14
_TICKS: Final = 4
_TABLE_ROWS: Final = 40
_PASSAGE_WIDTH: Final = 4
"""Of a mark on one message."""


class Threshold(NamedTuple):
    """A budget's line, and where its label is placed so that none covers another."""

    key: str
    label: str
    tokens: int
    y: float
    label_y: float


class Mark(NamedTuple):
    """A compaction: where the context fell from `before` to `after`."""

    x: float
    y_before: float
    y_after: float
    seq: int
    version: int
    step: str
    before: int
    after: int


class PassageBar(NamedTuple):
    """A passage that was searched for: messages `first..last`."""

    x: float
    width: float
    first: int
    last: int


class Point(NamedTuple):
    """Tokens once message `seq` was stored, for reading off."""

    x: float
    y: float
    seq: int
    held: int
    shown: int


class Plot(NamedTuple):
    """All that is drawn, in the units of the drawing; tokens are estimates with system prompt and tools."""

    width: int
    height: int
    left: int
    right: float
    top: int
    bottom: float
    held: str
    shown: str
    area: str
    points: Sequence[Point]
    marks: Sequence[Mark]
    thresholds: Sequence[Threshold]
    rows: Sequence[Tick]
    columns: Sequence[Tick]
    table: Sequence[Point]
    last: Point | None
    passages: Sequence[PassageBar]


def plot(
    moments: Sequence[Moment],
    lines: Sequence[Line],
    *,
    ratio: float,
    fixed: int,
    passages: Sequence[tuple[int, int]] = (),
) -> Plot:
    """Return the plot; estimates are made what a check compares with budgets by `ratio` and `fixed` tokens.

    `passages` are ranges of messages to be marked.
    """
    weighed = [
        moment._replace(
            held=_weigh(moment.held, ratio, fixed),
            shown=_weigh(moment.shown, ratio, fixed),
            before=_weigh(moment.before, ratio, fixed),
        )
        for moment in moments
    ]
    last_seq = max((moment.seq for moment in weighed), default=0)
    most_shown = max((max(moment.shown, moment.before) for moment in weighed), default=0)
    most_held = max((moment.held for moment in weighed), default=0)
    # A budget far above everything would press the curves flat.
    near = [line for line in lines if line.tokens <= 2 * max(most_held, 1)]
    step = nice(max([most_shown, most_held, *(line.tokens for line in near), 1]) / _TICKS)
    top = step * math.ceil(max([most_shown, most_held, *(line.tokens for line in near), 1]) / step)

    def x(seq: int) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (seq / last_seq if last_seq else 1.0), 1)

    def y(tokens: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * tokens / top, 1)

    points = [Point(x(each.seq), y(each.shown), each.seq, each.held, each.shown) for each in weighed]
    marks = [
        Mark(x(each.seq), y(each.before), y(each.shown), each.seq, each.version, each.step, each.before, each.shown)
        for each in weighed
        if each.version and each.step
    ]
    context_path = _path([(x(each.seq), y(value)) for each in weighed for value in _values(each)])
    spacing = max(1, math.ceil(len(points) / _TABLE_ROWS))
    return Plot(
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        top=TOP,
        bottom=HEIGHT - BOTTOM,
        held=_path([(x(each.seq), y(each.held)) for each in weighed]),
        shown=context_path,
        area=f"{context_path}V{y(0)}H{points[0].x}Z" if points else "",
        points=points,
        marks=marks,
        thresholds=_apart([(line, y(line.tokens)) for line in near]),
        rows=[Tick(y(value), value) for value in range(0, top + 1, step)],
        columns=[Tick(x(seq), seq) for seq in _columns(last_seq)] if points else [],
        table=[*points[::spacing], *points[-1:]] if points else [],
        last=points[-1] if points else None,
        passages=[
            PassageBar(
                round(x(first) - _PASSAGE_WIDTH / 2, 1), round(x(last) - x(first) + _PASSAGE_WIDTH, 1), first, last
            )
            for first, last in passages
        ],
    )


def _weigh(tokens: int, ratio: float, fixed: int) -> int:
    return math.ceil((tokens + fixed) * ratio)


def _values(moment: Moment) -> tuple[int, ...]:
    """Return the values at one place of the curve: a compaction falls straight down."""
    return (moment.shown,) if moment.version is None else (moment.before, moment.shown)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points) if points else ""


def _columns(last_seq: int) -> list[int]:
    step = nice(max(1, last_seq) / 6)
    return [*range(0, last_seq + 1, step)]


def _apart(lines: Sequence[tuple[Line, float]]) -> list[Threshold]:
    """Return the lines with labels far enough from each other, from the highest down."""
    placed: list[Threshold] = []
    for line, at in sorted(lines, key=lambda each: each[1]):
        label_y = max(at + 4, placed[-1].label_y + _LABEL_HEIGHT if placed else 0)
        placed.append(Threshold(line.key, line.label, line.tokens, at, label_y))
    return placed
