"""Where a process runs: what another process at the same place can know of its end without having heard of it."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path
from typing import Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE: Final = Path("/proc/self/ns/pid")
_STARTED: Final = 19
"""Where /proc/PID/stat has the start, in ticks since the boot, counted from the state; see proc_pid_stat(5)."""
_ENDED: Final = frozenset({"Z", "X"})
"""States of processes of which only the status is left, until their parent asks for it."""


def worker_name(pid: int | None = None) -> str:
    """Return what a process here is called among the holders of leases: host and id, this one's by default."""
    return f"{socket.gethostname()}:{pid or os.getpid()}"


@cache
def here() -> str | None:
    """Return the place of this process: within it a process id means one process. None where Linux does not tell."""
    try:
        return f"{socket.gethostname()} {_BOOT.read_text().strip()} {_PID_NAMESPACE.readlink()}"
    except OSError:
        return None


def started(pid: int) -> int | None:
    """Return when a process here began, in ticks since the boot; None where that is not to be known."""
    fields = _fields(pid)
    return int(fields[_STARTED]) if fields else None


def has_ended(pid: int, pid_started: int | None) -> bool:
    """Tell whether a process that began here at `pid_started` is certainly gone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # Another user's, whose files may be hidden as well.
    fields = _fields(pid)
    if not fields:
        return False
    return fields[0] in _ENDED or (pid_started is not None and int(fields[_STARTED]) != pid_started)


def _fields(pid: int) -> list[str]:
    try:
        # The command's name may hold anything, brackets too.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
