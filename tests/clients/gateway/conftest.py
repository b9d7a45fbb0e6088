"""The table of what each client sent and what the model received: printed, and recorded where that is asked for."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.clients.gateway.talking import table

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.clients.gateway.talking import Measured

MEASURED: Final = pytest.StashKey[list["Measured"]]()
RECORD: Final = "PALIMPSEST_CLIENTS_RECORD"
"""Names the file that the manual's page is made of; clients that did not run keep what is there."""


@pytest.fixture(scope="session")
def note(request: pytest.FixtureRequest) -> Callable[[Measured], None]:
    """Note what a client sent and what the model received."""
    return request.config.stash.setdefault(MEASURED, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table and keep the record."""
    clients = terminalreporter.config.stash.get(MEASURED, [])
    if not clients:
        return
    terminalreporter.section("clients through the gateway")
    terminalreporter.write_line(table(clients))
    if path := os.environ.get(RECORD):
        keep(Path(path), clients)


def keep(path: Path, clients: list[Measured]) -> None:
    """Write what was measured into the record, a line each."""
    known = {each["client"]: each for each in json.loads(path.read_text())} if path.exists() else {}
    known |= {each.client: asdict(each) for each in clients}
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for _, each in sorted(known.items()))
    path.write_text(f"[\n{lines}\n]\n")
