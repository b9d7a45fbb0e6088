"""The plot: bound recall against size, and what chained compactions leave, as one SVG file."""

from __future__ import annotations

from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.plots import COLOURS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.fidelity.chained import Chain
    from bench.fidelity.look_ahead import Score
    from bench.fidelity.report import Findings

_WIDTH: Final = 400
_HEIGHT: Final = 300
_LEFT: Final = 52
_RIGHT: Final = 16
_TOP: Final = 40
_BOTTOM: Final = 92
_COLUMNS: Final = 3
_TICKS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
_LEGEND_COLUMNS: Final = 2
_STYLE: Final = (
    "text{font:12px sans-serif;fill:#222}.title{font-weight:bold;font-size:13px}.small{font-size:11px}"
    ".grid{stroke:#ddd}.axis{stroke:#888}"
)


class Series(NamedTuple):
    """A line of a panel; `points` are (x, y), both 0 to 1."""

    name: str
    points: Sequence[tuple[float, float]]


class Panel(NamedTuple):
    """One chart; y is a share from 0 to 1."""

    title: str
    x_label: str
    y_label: str
    x_ticks: Sequence[tuple[float, str]]
    series: Sequence[Series]


def plot(findings: Findings) -> str:
    """Return the SVG document."""
    panels = [*_recall_panels(findings.scores), *_chain_panels(findings.chains)]
    columns = min(_COLUMNS, len(panels)) or 1
    rows = -(-len(panels) // columns)
    parts = [
        f'<g transform="translate({index % columns * _WIDTH},{index // columns * _HEIGHT})">{_draw(panel)}</g>'
        for index, panel in enumerate(panels)
    ]
    width, height = columns * _WIDTH, rows * _HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _recall_panels(scores: Iterable[Score]) -> list[Panel]:
    ticks = [(tick, f"{tick:g}") for tick in _TICKS]
    panels = []
    for source, of_source in groupby(scores, key=lambda score: score.source):
        series = [
            Series(strategy, sorted((min(1.0, score.share_kept), score.bound_recall) for score in of_strategy))
            for strategy, of_strategy in groupby(of_source, key=lambda score: score.strategy)
        ]
        panels.append(Panel(source, "characters kept", "bound recall", ticks, series))
    return panels


def _chain_panels(chains: Iterable[Chain]) -> list[Panel]:
    panels = []
    for source, of_source in groupby(chains, key=lambda chain: chain.source):
        series: list[Series] = []
        for chain in of_source:
            pins = "with pins" if chain.pinned else "no pins"
            series.append(Series(f"{chain.summarizer}: rules, {pins}", _curve(chain.rules)))
            if not chain.pinned:
                series.append(Series(f"{chain.summarizer}: values", _curve(chain.values)))
                series.append(Series(f"{chain.summarizer}: spoken values", _curve(chain.spoken)))
        ticks = [(number / 10, str(number)) for number in range(1, 11)]
        panels.append(Panel(f"{source}, compacted again and again", "compactions", "still there", ticks, series))
    return panels


def _curve(shares: Sequence[float]) -> list[tuple[float, float]]:
    return [(number / len(shares), share) for number, share in enumerate(shares, 1)]


def _draw(panel: Panel) -> str:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    out = [f'<text class="title" x="{_LEFT}" y="24">{escape(panel.title)}</text>']
    for tick in _TICKS:
        y = _y(tick)
        out.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text class="small" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick, label in panel.x_ticks:
        out.append(f'<text class="small" x="{_x(tick):.1f}" y="{bottom + 16}" text-anchor="middle">{label}</text>')
    out.append(f'<path class="axis" fill="none" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>')
    middle = (_LEFT + right) / 2
    out.append(f'<text class="small" x="{middle}" y="{bottom + 32}" text-anchor="middle">{panel.x_label}</text>')
    turned = f'transform="translate(14,{(_TOP + bottom) / 2}) rotate(-90)"'
    out.append(f'<text class="small" {turned} text-anchor="middle">{panel.y_label}</text>')
    for index, series in enumerate(panel.series):
        out.append(_line(series, COLOURS[index % len(COLOURS)]))
        out.append(_legend(series.name, index))
    return "".join(out)


def _line(series: Series, colour: str) -> str:
    points = [(_x(x), _y(y)) for x, y in series.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>{dots}'


def _legend(name: str, index: int) -> str:
    x = _LEFT - 30 + index % _LEGEND_COLUMNS * 185
    y = _HEIGHT - _BOTTOM + 50 + index // _LEGEND_COLUMNS * 14
    colour = COLOURS[index % len(COLOURS)]
    return (
        f'<rect x="{x}" y="{y - 8}" width="10" height="8" fill="{colour}"/>'
        f'<text class="small" x="{x + 14}" y="{y}">{escape(name)}</text>'
    )


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)
