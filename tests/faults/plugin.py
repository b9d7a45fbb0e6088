"""The pytest plugin of `make faults`: runs faults, what is slow and properties, and prints what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--fault`."""
    parser.addoption("--fault", action="append", metavar="ID", help="only tests of this fault, as F6; may be repeated")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of faults, the slow ones and those of properties; where faults are named, those of these alone."""
    wanted = set(config.getoption("--fault") or ())
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        names = {fault for mark in item.iter_markers("fault") for fault in mark.args}
        others = any(map(item.get_closest_marker, ("slow", "hypothesis")))
        is_kept = names & wanted if wanted else names or others
        (kept if is_kept else left).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Print a line for each property `measured` of the tests that passed."""
    lines = sorted(
        str(value)
        for report in terminalreporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name == "measured"
    )
    if lines:
        terminalreporter.section("measured")
    for line in lines:
        terminalreporter.write_line(line)
