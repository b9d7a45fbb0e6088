"""Processes of this machine: who descends from whom, and what they hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Held(NamedTuple):
    """What one part holds. Memory is its own alone: pages that forks and backends share are not counted many times."""

    processes: int
    bytes: int
    descriptors: int


def family(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    pids, waiting = [], [pid]
    while waiting:
        process = waiting.pop()
        pids.append(process)
        for task in _entries(Path(f"/proc/{process}/task")):
            waiting += [int(child) for child in _read(Path(f"/proc/{process}/task/{task}/children")).split()]
    return pids


def held(pids: Sequence[int]) -> Held:
    """Return what these processes hold together."""
    return Held(len(pids), sum(map(_own_bytes, pids)), sum(len(_entries(Path(f"/proc/{pid}/fd"))) for pid in pids))


def _own_bytes(pid: int) -> int:
    for line in _read(Path(f"/proc/{pid}/status")).splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def _entries(directory: Path) -> list[str]:
    try:
        return [path.name for path in directory.iterdir()]
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
