"""Named points at which a test holds a process, or ends it.

Outside tests a point does nothing: no process listens unless PALIMPSEST_FAULT_POINTS names a Unix socket. With one, the
process says which point it has reached and goes on when it is told to; the other end is
`tests/support/service/fault_points.py`.
"""

from __future__ import annotations

import json
import os
import socket
from functools import cache
from typing import Literal

Point = Literal[
    "turn.stored",
    "wakeup.sent",
    "check.started",
    "run.claimed",
    "summary.asked",
    "summary.answered",
    "snapshot.written",
    "snapshot.committed",
    "run.ended",
]
"""A place in the product's flow, `noun.participle`: it was just done when the point is reached."""


@cache
def _socket() -> str | None:
    """Return where to report to: read when a point is first reached, as a process may be forked for its environment."""
    return os.environ.get("PALIMPSEST_FAULT_POINTS")


def pause_for_test(point: Point) -> None:
    """Tell a listening test that the point is reached, and wait until it lets the process go on."""
    if (path := _socket()) is not None:
        _report(path, point)


def _report(path: str, point: Point) -> None:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            connection.sendall(json.dumps({"point": point, "pid": os.getpid()}).encode() + b"\n")
            connection.recv(1)
    except OSError:
        return  # the test is over
