"""The table of what each client sent and what the model received, printed at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.clients.gateway.talking import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def note(request: pytest.FixtureRequest) -> Iterator[Callable[[tuple[str, ...]], None]]:
    """Note a client's row of the table."""
    rows: list[tuple[str, ...]] = []
    yield rows.append
    terminal = request.config.pluginmanager.get_plugin("terminalreporter")
    if rows and terminal is not None:
        terminal.write_line(f"\n{table(rows)}")
