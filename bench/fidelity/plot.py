"""The plot: bound recall against size, and what chained compactions leave, as one SVG file."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from bench.plots import STYLE, Series, draw, svg

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.axes import Axes

    from bench.fidelity.chained import Chain
    from bench.fidelity.look_ahead import Score
    from bench.fidelity.report import Findings

_COLUMNS: Final = 3
_TICKS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)


class Panel(NamedTuple):
    """One chart; x and y are shares from 0 to 1, the ticks of x have names."""

    title: str
    x_label: str
    y_label: str
    x_ticks: Sequence[tuple[float, str]]
    series: Sequence[Series]


def plot(findings: Findings) -> str:
    """Return the SVG document."""
    panels = [*_recall_panels(findings.scores), *_chain_panels(findings.chains)]
    columns = min(_COLUMNS, len(panels)) or 1
    rows = -(-len(panels) // columns) or 1
    with mpl.rc_context(fname=STYLE):
        figure = Figure(figsize=(4.2 * columns, 3.6 * rows), layout="constrained")
        for number, panel in enumerate(panels):
            _draw(figure.add_subplot(rows, columns, number + 1), number, panel)
        return svg(figure, "Bound recall against size, and what is left after chained compactions")


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


def _draw(axes: Axes, number: int, panel: Panel) -> None:
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label, xlim=(-0.02, 1.02), ylim=(0, 1.02))
    axes.set_xticks([place for place, _ in panel.x_ticks], [name for _, name in panel.x_ticks])
    axes.set_yticks(_TICKS)
    draw(axes, panel.series, number, marker="o", clip_on=False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
