"""What `palimpsest serve` holds in memory when nothing is asked of it, by part: `python -m bench.at_rest`.

PSS of /proc/PID/smaps_rollup, in which a page that several processes share counts to each in equal parts.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

QUIET_SECONDS: Final = 15.0
"""Seconds until what a start needs is done with."""
_PARTS: Final = ("api", "gateway", "checks", "summaries", "beat", "serve")


def main() -> None:
    """Start the service, wait, and print megabytes by part and the seconds until it was ready."""
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "cli.main", "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as service:
        assert service.stdout is not None  # noqa: S101 - it was asked for
        service.stdout.readline()
        ready = time.monotonic() - began
        time.sleep(QUIET_SECONDS)
        held: Counter[str] = Counter()
        for pid in [service.pid, *_descendants(service.pid)]:
            held[_part(pid)] += _pss(pid)
        service.terminate()
    for part, kilobytes in held.most_common():
        print(f"{part:<12}{kilobytes / 1024:7.1f} MB")
    print(f"{'all':<12}{held.total() / 1024:7.1f} MB, ready after {ready:.1f} s")


def _descendants(pid: int) -> list[int]:
    children = [
        int(child) for tasks in Path(f"/proc/{pid}/task").glob("*/children") for child in tasks.read_text().split()
    ]
    return [each for child in children for each in (child, *_descendants(child))]


def _part(pid: int) -> str:
    """Return which part a process is, by its arguments; a pool's processes have those of their parent."""
    arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    named = [part for part in _PARTS if part in arguments]
    is_ours = bool({"cli.main", "palimpsest"} & set(arguments))
    return named[0] if named and is_ours else Path(arguments[0].split(" ")[0]).name.rstrip(":")


def _pss(pid: int) -> int:
    """Return kilobytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
