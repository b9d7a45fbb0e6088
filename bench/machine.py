"""The machine: which cores there are for what, and the CPU time that processes use."""

from __future__ import annotations

import os
import platform
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEGABYTE: Final = 1_000_000
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Cores:
    """Two cores: one for what is measured, one for the database and what loads the system.

    `measured` and `rest` are None where nothing can be pinned: no Linux, or one core only.
    """

    def __init__(self) -> None:
        self._all = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        pinnable = len(self._all) > 1
        self.measured = self._all[0] if pinnable else None
        self.rest = self._all[1] if pinnable else None

    def pin(self, pid: int, core: int | None) -> None:
        """Keep a process, its threads and its descendants on a core; what they start later stays there too."""
        if core is None:
            return
        for process in [pid, *_descendants(pid)]:
            for thread in _numbers(Path(f"/proc/{process}/task")):
                try:
                    os.sched_setaffinity(thread, {core})
                except ProcessLookupError:
                    continue

    @contextmanager
    def on(self, core: int | None) -> Iterator[None]:
        """Run this thread, and the processes it starts, on a core for the length of the block."""
        if core is None:
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {core})
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    def describe(self) -> str:
        """Say what runs where."""
        if self.measured is None:
            return f"{os.cpu_count()} cores, nothing pinned"
        return f"{len(self._all)} cores, measured on {self.measured}, database and load on {self.rest}"


def give_way(pid: int) -> None:
    """Have a process, its threads and its descendants take only what others leave of their core."""
    for process in [pid, *_descendants(pid)]:
        # Where a session's processes share one priority.
        with suppress(OSError):
            Path(f"/proc/{process}/autogroup").write_text("19")
        for thread in _numbers(Path(f"/proc/{process}/task")):
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, thread, 19)


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process and its descendants have used, ended ones included; 0 where unknown."""
    if not Path("/proc/self/stat").exists():
        return 0.0
    # Fields 14 to 17 of proc(5): own and waited-for children's time, in user mode and in the kernel.
    ticks = sum(sum(map(int, _stat(process)[11:15])) for process in [pid, *_descendants(pid)])
    return ticks / _TICKS


def resident_mb(pid: int) -> float:
    """Return the memory of a process in MB, resident; 0 where unknown."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    kilobytes = next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)
    return kilobytes * 1024 / _MEGABYTE


def processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _descendants(pid: int) -> list[int]:
    descendants: list[int] = []
    waiting = [pid]
    parents = {process: int(stat[1]) for process in _numbers(Path("/proc")) if (stat := _stat(process))[1:]}
    while waiting:
        parent = waiting.pop()
        children = [process for process, its_parent in parents.items() if its_parent == parent]
        descendants += children
        waiting += children
    return descendants


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the third on; none for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _numbers(directory: Path) -> list[int]:
    try:
        return [int(path.name) for path in directory.iterdir() if path.name.isdigit()]
    except OSError:
        return []
