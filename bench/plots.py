"""Curves as SVG files: the x axis is logarithmic, the y axis begins at zero unless the values are too far apart."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f")
"""Told apart by colour-blind readers too (Okabe and Ito, 2008), and a grey."""
_WIDTH: Final = 720
_HEIGHT: Final = 360
_LEFT: Final = 70
_RIGHT: Final = 190
_TOP: Final = 40
_BOTTOM: Final = 52
_FAR_APART: Final = 20
"""Greatest over least value from which on the y axis is logarithmic."""
_STYLE: Final = (
    "text{font:12px sans-serif;fill:#222}.title{font-weight:bold;font-size:13px}.small{font-size:11px}"
    ".grid{stroke:#ddd}.axis{stroke:#888;fill:none}"
)


class Series(NamedTuple):
    """A line: points (x, y) by ascending x, which is positive."""

    name: str
    points: Sequence[tuple[float, float]]


class Curve(NamedTuple):
    """What one thing costs in dependence of another; `name` is that of its file."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]

    def document(self) -> dict[str, Any]:
        """Return the curve for a JSON document."""
        return {**self._asdict(), "series": [series._asdict() for series in self.series]}


def write(curves: Sequence[Curve], directory: Path) -> list[Path]:
    """Write each curve to `<name>.svg` in a directory, which is made if it is not there; return the files."""
    directory.mkdir(parents=True, exist_ok=True)
    files = []
    for curve in curves:
        file = directory / f"{curve.name}.svg"
        file.write_text(plot(curve))
        files.append(file)
    return files


def plot(curve: Curve) -> str:
    """Return a curve as an SVG document."""
    xs = sorted({x for series in curve.series for x, _ in series.points})
    ys = [y for series in curve.series for _, y in series.points]
    x = _scale(math.log10(xs[0]), math.log10(xs[-1]), _LEFT, _WIDTH - _RIGHT)
    y, ticks = _y_axis(ys)
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    out = [f'<text class="title" x="{_LEFT}" y="22">{escape(curve.title)}</text>']
    for tick in ticks:
        at = f"{y(tick):.1f}"
        out.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{at}" y2="{at}"/>')
        out.append(f'<text class="small" x="{_LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:,g}</text>')
    for tick in xs:
        at = f"{x(math.log10(tick)):.1f}"
        out.append(f'<text class="small" x="{at}" y="{bottom + 16}" text-anchor="middle">{tick:,g}</text>')
    middle = (_LEFT + right) / 2
    out.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>')
    out.append(
        f'<text class="small" x="{middle}" y="{bottom + 36}" text-anchor="middle">{escape(curve.x_label)}</text>'
    )
    turned = f'transform="translate(16,{(_TOP + bottom) / 2}) rotate(-90)"'
    out.append(f'<text class="small" {turned} text-anchor="middle">{escape(curve.y_label)}</text>')
    for number, series in enumerate(curve.series):
        places = [(x(math.log10(at)), y(value)) for at, value in series.points]
        out += _line(series.name, places, number)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}"><style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>'
        f"{''.join(out)}</svg>\n"
    )


def _line(name: str, places: Sequence[tuple[float, float]], number: int) -> list[str]:
    colour = COLOURS[number % len(COLOURS)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    at = _TOP + 16 * number
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places),
        f'<rect x="{_WIDTH - _RIGHT + 14}" y="{at}" width="10" height="8" fill="{colour}"/>',
        f'<text class="small" x="{_WIDTH - _RIGHT + 28}" y="{at + 8}">{escape(name)}</text>',
    ]


def _y_axis(values: Sequence[float]) -> tuple[Callable[[float], float], list[float]]:
    """Return the place of a value, and the values that have a line across the plot."""
    least, greatest = min(values), max(values)
    if least > 0 and greatest / least > _FAR_APART:
        first, last = math.floor(math.log10(least)), math.ceil(math.log10(greatest))
        scale = _scale(first, last, _HEIGHT - _BOTTOM, _TOP)
        return (lambda value: scale(math.log10(value))), [10.0**power for power in range(first, last + 1)]
    step = _nice(greatest / 4) if greatest > 0 else 1.0
    count = max(1, math.ceil(greatest / step * 0.999))
    return _scale(0, step * count, _HEIGHT - _BOTTOM, _TOP), [step * number for number in range(count + 1)]


def _scale(first: float, last: float, start: float, end: float) -> Callable[[float], float]:
    """Return the linear function that takes `first..last` to `start..end`; a single value to the start."""
    width = last - first
    return lambda value: start + (end - start) * ((value - first) / width if width else 0.0)


def _nice(value: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, … and their tenths, that is not smaller."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999)
