"""A plot of a conversation's context in a terminal: columns of block characters, a mark at every compaction."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
HEIGHT: Final = 8
MARK: Final = "▲"
LINE: Final = "┄"
_ROOM: Final = 1.5
"""A threshold up to so many times the highest column is drawn; one further up would leave no room for the columns."""


class Point(NamedTuple):
    """Tokens of the context once message `seq` was stored; `is_compacted` when a snapshot came right after it."""

    seq: int
    tokens: int
    is_compacted: bool = False


class Threshold(NamedTuple):
    """Tokens from which something is done, and what."""

    tokens: int
    label: str


class _Column(NamedTuple):
    tokens: int
    is_compacted: bool


def context_plot(
    points: Sequence[Point], *, width: int, height: int = HEIGHT, thresholds: Sequence[Threshold] = ()
) -> list[Text]:
    """Return the plot's lines: `height` rows of columns with their scale, the marks, and the range of seq.

    Thresholds are lines behind the columns, named at their ends; one that is far above them is named below the plot.
    """
    columns = _columns(points, width)
    highest = max((column.tokens for column in columns), default=0) or 1
    drawn = [each for each in thresholds if each.tokens <= highest * _ROOM]
    top = max(highest, *(each.tokens for each in drawn), 1)
    lines = []
    for row in range(height, 0, -1):
        cells = "".join(_cell(column.tokens / top * height - (row - 1)) for column in columns)
        scale = f"{top * row // height:>9,} " if row in {height, (height + 1) // 2} else " " * 10
        here = [each for each in drawn if row - 1 < each.tokens / top * height <= row]
        lines.append(_row(scale, cells, here))
    marks = "".join(MARK if column.is_compacted else " " for column in columns)
    lines.append(Text.assemble(" " * 10, (marks.rstrip(), "bold magenta")))
    first, last = str(points[0].seq), str(points[-1].seq)
    gap = " " * (len(columns) - len(first) - len(last))
    lines.append(Text(f"{'message':>9} {first}{gap or ' '}{last}", style="dim"))
    if above := [_named(each) for each in thresholds if each not in drawn]:
        lines.append(Text(f"{'above':>9} {', '.join(above)}", style="dim"))
    return lines


def _row(scale: str, cells: str, thresholds: Sequence[Threshold]) -> Text:
    if not thresholds:
        return Text.assemble((scale, "dim"), (cells.rstrip(), "cyan"))
    line = Text(scale, style="dim")
    for cell in cells:
        line.append(LINE if cell == " " else cell, style="yellow" if cell == " " else "cyan")
    return line.append(f" {', '.join(map(_named, thresholds))}", style="yellow")


def _named(threshold: Threshold) -> str:
    return f"{threshold.tokens:,} {threshold.label}"


def _columns(points: Sequence[Point], width: int) -> list[_Column]:
    """Group points into at most `width` columns; a column is as high as its highest point."""
    count = min(width, len(points))
    edges = [round(index * len(points) / count) for index in range(count + 1)] if count else [0]
    groups = [points[start:end] for start, end in pairwise(edges)]
    return [
        _Column(max(point.tokens for point in group), any(point.is_compacted for point in group)) for group in groups
    ]


def _cell(filled: float) -> str:
    return EIGHTHS[max(0, min(8, round(filled * 8)))]
