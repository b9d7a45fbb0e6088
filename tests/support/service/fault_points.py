"""The other end of `runtime/fault_points.py`: a test holds processes at points, then lets them go on or ends them."""

from __future__ import annotations

import json
import os
import queue
import signal
import socketserver
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, get_args

from runtime.fault_points import Point

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT_SECONDS = 60  # a bound for a loaded machine; the process comes or the test fails


class Held:
    """A process that waits at a point."""

    def __init__(self, point: Point, pid: int) -> None:
        self.point, self.pid = point, pid
        self._go = threading.Event()

    def release(self) -> None:
        """Let it go on."""
        self._go.set()

    def kill(self) -> None:
        """End it where it stands, as the kernel would when memory is short."""
        os.kill(self.pid, signal.SIGKILL)
        self._go.set()

    def wait(self) -> None:
        """Wait for `release` or `kill`."""
        self._go.wait()


class FaultPoints:
    """Who is at which point. Only points that are being held stop anybody."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._holding: dict[Point, int] = {}
        self._arrived: dict[Point, queue.Queue[Held]] = {point: queue.Queue() for point in get_args(Point)}
        self._held: list[Held] = []
        self.counts: dict[Point, int] = dict.fromkeys(get_args(Point), 0)
        """How often each point was reached, held or not."""

    @property
    def env(self) -> dict[str, str]:
        """What a process has to have in its environment."""
        return {"PALIMPSEST_FAULT_POINTS": self.address}

    def hold(self, point: Point, times: int = 1) -> None:
        """Hold the next processes that reach the point."""
        with self._lock:
            self._holding[point] = self._holding.get(point, 0) + times

    def arrival(self, point: Point) -> Held:
        """Return the next process that was held at the point; wait for it."""
        return self._arrived[point].get(timeout=WAIT_SECONDS)

    def arrived(self, point: Point, pid: int) -> Held | None:
        """Note an arrival; return the process if it is to wait."""
        with self._lock:
            self.counts[point] += 1
            if not self._holding.get(point):
                return None
            self._holding[point] -= 1
            held = Held(point, pid)
            self._held.append(held)
        self._arrived[point].put(held)
        return held

    def release_all(self) -> None:
        """Hold nobody any more."""
        with self._lock:
            self._holding.clear()
            for held in self._held:
                held.release()


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64
    points: FaultPoints


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        line = self.rfile.readline()
        if not line:
            return
        message = json.loads(line)
        assert isinstance(self.server, _Server)
        held = self.server.points.arrived(message["point"], message["pid"])
        if held is not None:
            held.wait()
        try:
            self.wfile.write(b".")
        except OSError:
            return  # it was killed


@contextmanager
def fault_points(folder: Path) -> Iterator[FaultPoints]:
    """Listen in a folder whose path is short enough for a Unix socket (107 bytes)."""
    path = folder / "points"
    with _Server(str(path), _Handler) as server:
        server.points = FaultPoints(str(path))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server.points
        finally:
            server.points.release_all()
            server.shutdown()
            thread.join()
