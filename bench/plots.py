"""Curves as SVG files: the x axis is logarithmic, the y axis begins at zero unless the values are too far apart."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

STYLE: Final = Path(__file__).with_name("plots.mplstyle")
_FAR_APART: Final = 20
"""Greatest over least value from which on the y axis is logarithmic."""


class Series(NamedTuple):
    """A line: points (x, y) by ascending x."""

    name: str
    points: Sequence[tuple[float, float]]


class Curve(NamedTuple):
    """What one thing costs in dependence of another, which is positive; `name` is that of its file."""

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
    with mpl.rc_context(fname=STYLE):
        figure = Figure(figsize=(7.5, 3.75), layout="constrained")
        axes = figure.add_subplot(title=curve.title, xlabel=curve.x_label, ylabel=curve.y_label, xscale="log")
        xs = sorted({x for series in curve.series for x, _ in series.points})
        axes.set_xticks(xs, [f"{x:,g}" for x in xs])
        axes.xaxis.set_minor_locator(NullLocator())
        values = [value for series in curve.series for _, value in series.points]
        if min(values) > 0 and max(values) / min(values) > _FAR_APART:
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(0, max(values) * 1.05 or 1.0)
        axes.yaxis.set_major_formatter("{x:,g}")
        draw(axes, curve.series, marker="o")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
        return svg(figure, curve.title)


def draw(axes: Axes, lines: Sequence[Series], panel: int = 0, **style: Any) -> None:
    """Draw lines; in the file, each has the id `line-<panel>-<its place>`."""
    for number, line in enumerate(lines):
        xs, ys = zip(*line.points, strict=True) if line.points else ((), ())
        axes.plot(xs, ys, label=line.name, gid=f"line-{panel}-{number}", **style)


def svg(figure: Figure, title: str) -> str:
    """Return a figure as an SVG document."""
    written = StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Title": title})
    return written.getvalue()
