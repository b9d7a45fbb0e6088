#!/usr/bin/env python3
"""Prints docs/images/life.svg, the course of a conversation, from what the demo shows.

`palimpsest demo --json 2>&1 >/dev/null | .venv/bin/python docs/life_plot.py >docs/images/life.svg`
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from bench.plots import STYLE, svg

if TYPE_CHECKING:
    from collections.abc import Iterable

_TURN: Final = re.compile(r"turn +(\d+)  .*context +([\d,]+) of +([\d,]+)")
_CUT: Final = re.compile(r" +(?:\d+ (tool results) cut, |(summary) .*messages, )([\d,]+) → ([\d,]+)")
_LINES: Final = (
    (40_000, "input_token_budget"),
    (80_000, "compaction_threshold_tokens"),
    (200_000, "the model's window"),
)
_STEPS: Final = (("tool results", "tool results cut", "#009e73"), ("summary", "summary", "#cc79a7"))


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
        if match := _TURN.match(line):
            number, context, stored = (int(each.replace(",", "")) for each in match.groups())
            turns.append(Turn(number, context, stored, []))
        elif match := _CUT.match(line):
            turns[-1].cuts.append((match[1] or match[2], int(match[4].replace(",", ""))))
    return turns


def plot(turns: list[Turn]) -> str:
    """Return the plot: stored and served tokens by turn, the thresholds as lines, the steps as marks."""
    served = [
        point
        for turn in turns
        for point in [(turn.number, turn.context), *((turn.number, after) for _, after in turn.cuts)]
    ]
    title = f"{turns[-1].stored:,} tokens stored, at most {max(turn.context for turn in turns):,} served"
    with mpl.rc_context(fname=STYLE):
        figure = Figure(figsize=(8, 3.6), layout="constrained")
        axes = figure.add_subplot(xlabel="turn", xlim=(1, turns[-1].number))
        axes.set_ylim(0, max(turn.stored for turn in turns) * 1.04)
        axes.set_yticks([0, *(tokens for tokens, _ in _LINES)])
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_xticks([1, *range(10, len(turns) + 1, 10)])
        for tokens, name in _LINES:
            axes.annotate(name, (1, tokens), (4, 3), textcoords="offset points", color="#555", size=8)
        axes.plot(
            [turn.number for turn in turns], [turn.stored for turn in turns], "--", color="#d55e00", label="stored"
        )
        axes.plot(*zip(*served, strict=True), color="#0072b2", label="served")
        for step, name, colour in _STEPS:
            cuts = [(turn.number, after) for turn in turns for kind, after in turn.cuts if kind == step]
            axes.plot(
                *zip(*cuts, strict=True),
                "o",
                color=colour,
                label=name,
                gid=f"cuts-{step.replace(' ', '-')}",
                markersize=5,
            )
        figure.legend(loc="outside upper left", ncols=4)
        return svg(figure, title)


if __name__ == "__main__":
    sys.stdout.write(plot(read(sys.stdin)))
