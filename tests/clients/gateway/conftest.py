"""The table of what each client sent and what the model received, printed at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.clients.gateway.talking import table

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS: Final = pytest.StashKey[list[tuple[str, ...]]]()


@pytest.fixture(scope="session")
def note(request: pytest.FixtureRequest) -> Callable[[tuple[str, ...]], None]:
    """Note a client's row of the table."""
    return request.config.stash.setdefault(ROWS, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    if rows := terminalreporter.config.stash.get(ROWS, []):
        terminalreporter.section("clients through the gateway")
        terminalreporter.write_line(table(rows))
