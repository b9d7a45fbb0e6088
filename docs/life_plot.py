#!/usr/bin/env python3
"""Prints docs/images/life.svg, the course of a conversation, from what the demo shows.

`palimpsest demo --json 2>&1 >/dev/null | docs/life_plot.py >docs/images/life.svg`
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_TURN: Final = re.compile(r"turn +(\d+)  .*context +([\d,]+) of +([\d,]+)")
_CUT: Final = re.compile(r" +(?:\d+ (tool results) cut, |(summary) .*messages, )([\d,]+) → ([\d,]+)")
_WIDTH, _HEIGHT = 760, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 20, 34, 44
_LINES: Final = (
    (40_000, "input_token_budget"),
    (80_000, "compaction_threshold_tokens"),
    (200_000, "the model's window"),
)


class Turn(NamedTuple):
    """A turn: tokens of the context after it, tokens stored, and what was cut then (step, tokens after)."""

    number: int
    context: int
    stored: int
    cuts: list[tuple[str, int]]


def read(lines: Iterable[str]) -> list[Turn]:
    """Return the turns that the demo shows."""
    turns: list[Turn] = []
    for line in lines:
        if found := _TURN.match(line):
            number, context, stored = (int(each.replace(",", "")) for each in found.groups())
            turns.append(Turn(number, context, stored, []))
        elif found := _CUT.match(line):
            turns[-1].cuts.append((found[1] or found[2], int(found[4].replace(",", ""))))
    return turns


def plot(turns: list[Turn]) -> str:
    """Return the plot: stored and served tokens by turn, the thresholds as lines, the steps as marks."""
    top = max(turn.stored for turn in turns) * 1.04

    def x(number: float) -> float:
        return _LEFT + (number - 1) / (len(turns) - 1) * (_WIDTH - _LEFT - _RIGHT)

    def y(tokens: float) -> float:
        return _HEIGHT - _BOTTOM - tokens / top * (_HEIGHT - _TOP - _BOTTOM)

    served = [
        point
        for turn in turns
        for point in [(turn.number, turn.context), *((turn.number, after) for _, after in turn.cuts)]
    ]
    title = f"{turns[-1].stored:,} tokens stored, at most {max(turn.context for turn in turns):,} served"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="t">',
        f'<title id="t">{title}</title>',
        "<style>text{font:12px sans-serif;fill:#222}.small{font-size:11px;fill:#555}</style>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="#fff"/>',
        *_lines(y),
        *(
            f'<text class="small" x="{x(number):.0f}" y="{_HEIGHT - 24}" text-anchor="middle">{number}</text>'
            for number in (1, *range(10, len(turns) + 1, 10))
        ),
        f'<text class="small" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">turn</text>',
        _path([(x(turn.number), y(turn.stored)) for turn in turns], "#d55e00", "5 4"),
        _path([(x(number), y(tokens)) for number, tokens in served], "#0072b2", ""),
        *(
            f'<circle cx="{x(turn.number):.1f}" cy="{y(after):.1f}" r="4" '
            f'fill="{"#cc79a7" if step == "summary" else "#009e73"}"/>'
            for turn in turns
            for step, after in turn.cuts
        ),
        *_legend(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _lines(y: Callable[[float], float]) -> list[str]:
    return [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tokens):.1f}" y2="{y(tokens):.1f}" stroke="#bbb"/>'
        f'<text class="small" x="{_LEFT - 6}" y="{y(tokens) + 4:.1f}" text-anchor="end">{tokens:,}</text>'
        f'<text class="small" x="{_LEFT + 6}" y="{y(tokens) - 4:.1f}">{name}</text>'
        for tokens, name in ((0, ""), *_LINES)
    ]


def _path(points: list[tuple[float, float]], colour: str, dashes: str) -> str:
    way = " ".join(f"{'L' if place else 'M'}{x:.1f} {y:.1f}" for place, (x, y) in enumerate(points))
    return f'<path d="{way}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>'


def _legend() -> list[str]:
    entries = (("#d55e00", "stored"), ("#0072b2", "served"), ("#009e73", "tool results cut"), ("#cc79a7", "summary"))
    return [
        f'<rect x="{_LEFT + place * 130}" y="12" width="10" height="10" fill="{colour}"/>'
        f'<text x="{_LEFT + 16 + place * 130}" y="21">{name}</text>'
        for place, (colour, name) in enumerate(entries)
    ]


if __name__ == "__main__":
    sys.stdout.write(plot(read(sys.stdin)))
