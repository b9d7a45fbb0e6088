"""The plot of a soak as one SVG file: throughput, latency, waiting checks and memory over time, with the faults."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from bench.plots import STYLE, Series, draw, svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from bench.soak.course import Outcome

_POINTS: Final = 300
"""Points of a line; in longer soaks each stands for several seconds."""


class Panel(NamedTuple):
    """One chart; all have the same time axis, in seconds."""

    title: str
    lines: Sequence[Series]
    logarithmic: bool = False


def plot(outcome: Outcome) -> str:
    """Return the SVG document."""
    panels = [_throughput(outcome), _latency(outcome), _waiting(outcome), _memory(outcome)]
    kinds = sorted({fault.kind for fault in outcome.faults})
    heights = [1.9] * len(panels) + [0.4 + 0.18 * len(kinds)]
    with mpl.rc_context(fname=STYLE):
        figure = Figure(figsize=(11, sum(heights)), layout="constrained")
        *charts, below = figure.subplots(len(heights), sharex=True, height_ratios=heights)
        for number, (axes, panel) in enumerate(zip(charts, panels, strict=True)):
            _draw(axes, number, panel, outcome)
        _draw_faults(below, kinds, outcome)
        return svg(figure, "Throughput, latency, waiting checks, memory and faults of a soak")


def _throughput(outcome: Outcome) -> Panel:
    width = _bin(outcome)
    good = [took.at for took in outcome.took if 200 <= took.status < 400]
    failed = [took.at for took in outcome.took if took.status in {0, 503}]
    rates = [
        Series(name, [(at, len(values) / width) for at, values in _binned([(t, 1.0) for t in times], width)])
        for name, times in (("answered", good), ("failed, sent again", failed))
    ]
    return Panel("requests a second", rates)


def _latency(outcome: Outcome) -> Panel:
    width = _bin(outcome)
    served = [(took.at, 1e3 * took.seconds) for took in outcome.took if took.status and took.kind != "run"]
    binned = _binned(served, width)
    shares = (("p50", 0.5), ("p99", 0.99))
    lines = [Series(name, [(at, _share(values, share)) for at, values in binned]) for name, share in shares]
    return Panel("latency, ms", lines, logarithmic=True)


def _waiting(outcome: Outcome) -> Panel:
    seen = outcome.samples
    lines = [
        ("oldest due check, s", [(s.at, s.oldest_due_seconds) for s in seen if s.oldest_due_seconds is not None]),
        ("due checks", [(s.at, float(s.due_checks)) for s in seen if s.due_checks is not None]),
        ("active runs", [(s.at, float(s.active_runs)) for s in seen if s.active_runs is not None]),
    ]
    return Panel("waiting", [Series(name, _peaks(points, outcome)) for name, points in lines])


def _memory(outcome: Outcome) -> Panel:
    lines: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for sample in outcome.samples:
        for name, held in sample.parts.items():
            lines[name].append((sample.at, held.bytes / 2**20))
    return Panel("own memory, MB", [Series(name, _peaks(lines[name], outcome)) for name in sorted(lines)])


def _peaks(points: Sequence[tuple[float, float]], outcome: Outcome) -> list[tuple[float, float]]:
    return [(at, max(values)) for at, values in _binned(points, _bin(outcome))]


def _bin(outcome: Outcome) -> float:
    return max(1.0, math.ceil(outcome.load_seconds / _POINTS))


def _binned(values: Sequence[tuple[float, float]], width: float) -> list[tuple[float, list[float]]]:
    bins: defaultdict[int, list[float]] = defaultdict(list)
    for at, value in values:
        bins[int(at // width)].append(value)
    return [((number + 0.5) * width, bins[number]) for number in sorted(bins)]


def _share(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _draw(axes: Axes, number: int, panel: Panel, outcome: Outcome) -> None:
    axes.set_title(panel.title)
    draw(axes, panel.lines, number)
    for place, fault in enumerate(outcome.faults):
        axes.axvline(fault.at, gid=f"fault-{number}-{place}", color="#999", linewidth=0.8, linestyle=":")
    for place, breach in enumerate(outcome.breaches):
        axes.axvline(breach.at, gid=f"breach-{number}-{place}", color="#d00", linewidth=1.2)
    if panel.logarithmic:
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(bottom=1)
        axes.yaxis.set_major_formatter("{x:,g}")
    else:
        axes.set_ylim(bottom=0)
    if panel.lines:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


def _draw_faults(axes: Axes, kinds: Sequence[str], outcome: Outcome) -> None:
    """Draw when each kind of fault was under way; what it was is in the report."""
    axes.set_title("faults")
    axes.grid(visible=False)
    axes.set_yticks(range(len(kinds)), kinds)
    axes.yaxis.tick_right()
    axes.invert_yaxis()
    end = max([outcome.load_seconds, *(sample.at for sample in outcome.samples)])
    for row, kind in enumerate(kinds):
        spans = [(fault.at, max(end / 300, fault.until - fault.at)) for fault in outcome.faults if fault.kind == kind]
        axes.broken_barh(spans, (row - 0.35, 0.7), color=f"C{row}")
    axes.set_xlim(0, end)
    axes.xaxis.set_major_formatter("{x:g} s")
