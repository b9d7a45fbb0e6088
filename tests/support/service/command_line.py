"""Commands called in the test's own process, or from it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def own_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep a command from setting up logging: it would write to the command's stderr when that is long closed.

    What is logged meanwhile is not printed; import it into a test module to use it.
    """
    for module in ("runtime.log", "cli.doctor.command"):
        monkeypatch.setattr(f"{module}.configure_logging", lambda _: None)
    with capture_logs():
        yield


@pytest.fixture
def heeding_ctrl_c() -> Iterator[None]:
    """Have children heed it: tests that a shell runs in the background ignore it, and so would these."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
