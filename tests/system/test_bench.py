"""The benchmark: every row and every curve runs, the plots show what was measured, the targets find their rows."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from bench.measure import Row, Sample, Target
from bench.plots import Curve, Series, plot, write
from bench.rows.compaction import conversation, plan_and_cut
from bench.run import CURVES, ROWS
from bench.targets import TARGETS, aimed, not_measured
from compaction.policy import Policy
from compaction.steps.snapshot import Snapshot
from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SVG = "{http://www.w3.org/2000/svg}"
SCRIPT = ROOT / "bench" / "run.py"


def row(name: str, measured: float = 3, reference: float = 2, target: Target | None = None) -> Row:
    return Row(name, "what", "this", "that", " ms", [(Sample(measured), Sample(reference))], target)


def drawn(*series: Series) -> list[list[tuple[float, float]]]:
    """Return the lines of a plot as places, in the order of the series."""
    lines = lines_of(plot(Curve("c", "a < b", "x & y", "ms", series)))
    return [[(float(each.attrib["x"]), float(each.attrib["y"])) for each in line.iter(f"{SVG}use")] for line in lines]


def lines_of(picture: str) -> list[ET.Element]:
    groups = ET.fromstring(picture).iter(f"{SVG}g")  # noqa: S314 - made here
    return [group for group in groups if group.get("id", "").startswith("line-")]


def run_short(out: Path) -> dict[str, Any]:
    """Run the benchmark in its short form, check every plot, and return the document."""
    command = [sys.executable, str(SCRIPT), "--short", "--long", "--json", "--out", str(out)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    # No summary is due in as few turns as the short form plays.
    assert all(row["ratio"]["median"] > 0 for row in document["rows"] if not row["name"].startswith("summary-input"))
    files = {file.stem: file.read_text() for file in out.glob("*.svg")}
    assert set(files) == {curve["name"] for curve in document["curves"]}
    for curve in document["curves"]:
        assert len(lines_of(files[curve["name"]])) == len(curve["series"])
        assert all(x > 0 and y > 0 for series in curve["series"] for x, y in series["points"])
    return document


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_everything_runs_and_every_curve_is_drawn(tmp_path: Path) -> None:
    document = run_short(tmp_path)

    rows = {row["name"] for row in document["rows"]}
    assert rows >= {"append", "context", "database", "checks", "length-append", "compaction", "staleness"}
    curves = {curve["name"] for curve in document["curves"]}
    assert curves >= {"by-length", "by-result-size", "by-connections-p99"}


@pytest.mark.slow
def test_a_name_that_is_neither_row_nor_curve_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--only", "speed"], check=False, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 2
    assert "speed" in done.stderr


def test_rows_and_curves_have_names_of_their_own() -> None:
    assert not set(ROWS) & set(CURVES)


def test_a_plot_has_a_point_for_each_that_was_measured() -> None:
    flat, steep = drawn(
        Series("flat", [(10, 1.0), (100, 1.0), (1_000, 1.0)]), Series("steep", [(10, 1.0), (100, 5.0), (1_000, 9.0)])
    )

    assert [x for x, _ in flat] == [x for x, _ in steep]
    assert flat[1][0] - flat[0][0] == pytest.approx(flat[2][0] - flat[1][0], abs=0.2)
    assert len({y for _, y in flat}) == 1
    assert all(before > after for (_, before), (_, after) in pairwise(steep))


def test_values_that_are_far_apart_get_a_logarithmic_axis() -> None:
    (line,) = drawn(Series("s", [(1, 0.1), (10, 1.0), (100, 10.0)]))

    assert line[0][1] - line[1][1] == pytest.approx(line[1][1] - line[2][1], abs=0.2)


@pytest.mark.parametrize("points", [[(10.0, 4.0)], [(10.0, 0.0), (100.0, 0.0)], [(1.0, 0.0), (2.0, 1e6)]])
def test_a_single_point_and_zeros_can_be_drawn(points: list[tuple[float, float]]) -> None:
    assert [len(line) for line in drawn(Series("s", points))] == [len(points)]


def test_plots_are_files_named_for_their_curves(tmp_path: Path) -> None:
    curve = Curve("by-length", "t", "x", "y", [Series("s", [(1, 1.0), (2, 2.0)])])

    (file,) = write([curve], tmp_path / "out")

    assert file == tmp_path / "out" / "by-length.svg"
    assert file.read_text() == plot(curve)


def test_the_table_of_targets_goes_before_a_rows_own() -> None:
    listed, own = aimed([row("compaction", target=Target(">=", 9)), row("other", target=Target(">=", 1.5))])

    assert (listed.target, listed.meets_target) == (TARGETS["compaction"], True)
    assert (own.target, own.meets_target) == (Target(">=", 1.5), True)
    assert aimed([row("compaction", measured=5)])[0].meets_target is False


def test_a_target_without_a_row_is_told() -> None:
    assert "compaction" not in not_measured([row("compaction")])
    assert set(not_measured([])) == set(TARGETS)


def test_the_compaction_that_is_measured_is_one() -> None:
    tail = conversation(300_000, 4_000)

    stage, new = plan_and_cut(Snapshot(), tail, Policy())

    assert len(stage.view) == len(tail)
    assert new.bytes < 150_000
    assert any(span.fate == "truncated" for span in new.coverage)
