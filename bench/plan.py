"""What a run of the benchmark is to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from bench.servers import Servers


class Plan(NamedTuple):
    """How long, how often, and with what."""

    servers: Servers
    seconds: float
    """Length of one side of one round."""
    rounds: int
    short: bool
    """Only find out whether everything runs."""
    pgbench: Path | None
    transcripts: Path
    """Folder with recorded conversations; it need not be there."""

    @property
    def conversations(self) -> int:
        """Conversations that appends are spread over."""
        return 400 if self.short else 20_000

    @property
    def reference_name(self) -> str:
        """What calls the database directly."""
        return "pgbench" if self.pgbench else "asyncpg (no pgbench here)"
