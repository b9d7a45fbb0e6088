"""The plot of a soak as one SVG file: throughput, latency, waiting checks and memory over time, with the faults."""

from __future__ import annotations

import math
from collections import defaultdict
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.plots import COLOURS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.soak.course import Outcome

_WIDTH: Final = 1_100
_HEIGHT: Final = 190
_LEFT: Final = 64
_RIGHT: Final = 190
_TOP: Final = 26
_BOTTOM: Final = 22
_FAULTS: Final = 18
_POINTS: Final = 300
"""Points of a line; in longer soaks each stands for several seconds."""
_STYLE: Final = (
    "text{font:12px sans-serif;fill:#222}.title{font-weight:bold;font-size:13px}.small{font-size:11px}"
    ".grid{stroke:#ddd}.fault{stroke:#999;stroke-dasharray:2 3}.breach{stroke:#d00;stroke-width:1.5}"
)


class Line(NamedTuple):
    """A line of a panel; points are (second, value)."""

    name: str
    points: Sequence[tuple[float, float]]


class Panel(NamedTuple):
    """One chart; all have the same time axis."""

    title: str
    lines: Sequence[Line]
    logarithmic: bool = False


def plot(outcome: Outcome) -> str:
    """Return the SVG document."""
    panels = [_throughput(outcome), _latency(outcome), _waiting(outcome), _memory(outcome)]
    end = max([outcome.load_seconds, *(sample.at for sample in outcome.samples)])
    kinds = sorted({fault.kind for fault in outcome.faults})
    height = len(panels) * _HEIGHT + (len(kinds) + 1) * _FAULTS + _BOTTOM
    parts = [
        f'<g transform="translate(0,{number * _HEIGHT})">{_draw(panel, end, outcome)}</g>'
        for number, panel in enumerate(panels)
    ]
    parts.append(f'<g transform="translate(0,{len(panels) * _HEIGHT})">{_faults(outcome, kinds, end)}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">'
        f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _throughput(outcome: Outcome) -> Panel:
    width = _bin(outcome)
    good = [took.at for took in outcome.took if 200 <= took.status < 400]
    failed = [took.at for took in outcome.took if took.status in {0, 503}]
    rates = [
        Line(name, [(at, len(values) / width) for at, values in _binned([(t, 1.0) for t in times], width)])
        for name, times in (("answered", good), ("failed, sent again", failed))
    ]
    return Panel("requests a second", rates)


def _latency(outcome: Outcome) -> Panel:
    width = _bin(outcome)
    served = [(took.at, 1e3 * took.seconds) for took in outcome.took if took.status and took.kind != "run"]
    binned = _binned(served, width)
    shares = (("p50", 0.5), ("p99", 0.99))
    lines = [Line(name, [(at, _share(values, share)) for at, values in binned]) for name, share in shares]
    return Panel("latency, ms", lines, logarithmic=True)


def _waiting(outcome: Outcome) -> Panel:
    seen = outcome.samples
    lines = [
        ("oldest due check, s", [(s.at, s.oldest_due_seconds) for s in seen if s.oldest_due_seconds is not None]),
        ("due checks", [(s.at, float(s.due_checks)) for s in seen if s.due_checks is not None]),
        ("active runs", [(s.at, float(s.active_runs)) for s in seen if s.active_runs is not None]),
    ]
    return Panel("waiting", [Line(name, _peaks(points, outcome)) for name, points in lines])


def _memory(outcome: Outcome) -> Panel:
    lines: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for sample in outcome.samples:
        for name, held in sample.parts.items():
            lines[name].append((sample.at, held.bytes / 2**20))
    return Panel("own memory, MB", [Line(name, _peaks(lines[name], outcome)) for name in sorted(lines)])


def _peaks(points: Sequence[tuple[float, float]], outcome: Outcome) -> list[tuple[float, float]]:
    return [(at, max(values)) for at, values in _binned(points, _bin(outcome))]


def _bin(outcome: Outcome) -> float:
    return max(1.0, math.ceil(outcome.load_seconds / _POINTS))


def _binned(values: Sequence[tuple[float, float]], width: float) -> list[tuple[float, list[float]]]:
    found: defaultdict[int, list[float]] = defaultdict(list)
    for at, value in values:
        found[int(at // width)].append(value)
    return [((number + 0.5) * width, found[number]) for number in sorted(found)]


def _share(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _draw(panel: Panel, end: float, outcome: Outcome) -> str:
    greatest = max((value for line in panel.lines for _, value in line.points), default=0.0)
    top = 10.0 ** max(1, math.ceil(math.log10(max(1.0, greatest)))) if panel.logarithmic else _nice(greatest)
    bottom = _HEIGHT - _BOTTOM

    def y(value: float) -> float:
        share = math.log10(max(1.0, value)) / math.log10(top) if panel.logarithmic else value / top
        return bottom - share * (bottom - _TOP)

    ticks = [10.0**power for power in range(round(math.log10(top)) + 1)] if panel.logarithmic else [0.0, top / 2, top]
    out = [f'<text class="title" x="{_LEFT}" y="16">{escape(panel.title)}</text>']
    for tick in ticks:
        out.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        out.append(f'<text class="small" x="{_LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    out += [_upright("fault", _x(fault.at, end), bottom) for fault in outcome.faults]
    out += [_upright("breach", _x(breach.at, end), bottom) for breach in outcome.breaches]
    out += _times(end, bottom + 14)
    for number, line in enumerate(panel.lines):
        out += _line(line, number, lambda at: _x(at, end), y)
    return "".join(out)


def _line(line: Line, number: int, x: Callable[[float], float], y: Callable[[float], float]) -> list[str]:
    colour = COLOURS[number % len(COLOURS)]
    path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in line.points)
    at = _TOP + 14 * number
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4"/>',
        f'<rect x="{_WIDTH - _RIGHT + 12}" y="{at}" width="10" height="8" fill="{colour}"/>',
        f'<text class="small" x="{_WIDTH - _RIGHT + 26}" y="{at + 8}">{escape(line.name)}</text>',
    ]


def _faults(outcome: Outcome, kinds: Sequence[str], end: float) -> str:
    out = [f'<text class="title" x="{_LEFT}" y="12">faults</text>']
    for number, kind in enumerate(kinds):
        y = _FAULTS * (number + 1)
        out.append(f'<text class="small" x="{_WIDTH - _RIGHT + 12}" y="{y + 9}">{escape(kind)}</text>')
        for fault in outcome.faults:
            if fault.kind == kind:
                width = max(3.0, _x(fault.until, end) - _x(fault.at, end))
                title = f"<title>{fault.at:.1f} s: {escape(fault.what)}</title>"
                colour = COLOURS[number % len(COLOURS)]
                place = f'x="{_x(fault.at, end):.1f}" y="{y}" width="{width:.1f}" height="11"'
                out.append(f'<rect {place} fill="{colour}">{title}</rect>')
    return "".join(out)


def _upright(name: str, x: float, bottom: float) -> str:
    return f'<line class="{name}" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>'


def _times(end: float, y: float) -> list[str]:
    step = _nice(end / 10)
    ticks = [step * number for number in range(int(end / step) + 1)]
    return [f'<text class="small" x="{_x(t, end):.1f}" y="{y}" text-anchor="middle">{t:g} s</text>' for t in ticks]


def _x(at: float, end: float) -> float:
    return _LEFT + min(at, end) / end * (_WIDTH - _LEFT - _RIGHT)


def _nice(value: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, … that is not smaller."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999)
