"""The workers and beat of an installation, each of which is replaced when a test ends it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tests.faults.installation import Installation
    from tests.support.processes import Worker


class Crew:
    """A checks worker, two of summaries, two sweepers; whoever is ended by a test is replaced."""

    def __init__(self, installation: Installation, stack: ExitStack) -> None:
        self._installation, self._stack = installation, stack
        self._kinds: dict[int, tuple[str, Worker]] = {}
        for kind in ("checks", "summaries", "summaries", "beat", "beat"):
            self._start(kind)

    def _start(self, kind: str) -> None:
        extra = () if kind == "beat" else ("--concurrency", "2")
        worker = self._stack.enter_context(self._installation.worker(kind, *extra))
        self._kinds[worker.process.pid] = kind, worker

    def of(self, pid: int) -> Worker:
        """Return the worker of a process, which may be a child of its pool."""
        if pid not in self._kinds:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return self._kinds[pid][1]

    def replace(self, worker: Worker) -> None:
        """Start another like it, which the next test waits for."""
        kind, _ = self._kinds.pop(worker.process.pid)
        self._start(kind)

    def kill(self, pid: int) -> None:
        """Kill the worker of a process, all of it, and start another."""
        worker = self.of(pid)
        worker.kill()
        self.replace(worker)

    def each(self, kind: str) -> list[Worker]:
        """Return the processes of a kind."""
        return [worker for its_kind, worker in self._kinds.values() if its_kind == kind]

    def is_complete(self) -> bool:
        """Tell whether everybody has started."""
        return self._kinds.keys() <= self._installation.alive()
