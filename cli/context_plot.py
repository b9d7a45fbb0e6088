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


class Point(NamedTuple):
    """Tokens of the context once message `seq` was stored; `is_compacted` when a snapshot came right after it."""

    seq: int
    tokens: int
    is_compacted: bool = False


class _Column(NamedTuple):
    tokens: int
    is_compacted: bool


def context_plot(points: Sequence[Point], *, width: int, height: int = HEIGHT) -> list[Text]:
    """Return the plot's lines: `height` rows of columns with their scale, the marks, and the range of seq."""
    columns = _columns(points, width)
    top = max((column.tokens for column in columns), default=0) or 1
    lines = []
    for row in range(height, 0, -1):
        cells = "".join(_cell(column.tokens / top * height - (row - 1)) for column in columns)
        scale = f"{top * row // height:>9,} " if row in {height, (height + 1) // 2} else " " * 10
        lines.append(Text.assemble((scale, "dim"), (cells.rstrip(), "cyan")))
    marks = "".join(MARK if column.is_compacted else " " for column in columns)
    lines.append(Text.assemble(" " * 10, (marks.rstrip(), "bold magenta")))
    first, last = str(points[0].seq), str(points[-1].seq)
    gap = " " * (len(columns) - len(first) - len(last))
    lines.append(Text(f"{'message':>9} {first}{gap or ' '}{last}", style="dim"))
    return lines


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
