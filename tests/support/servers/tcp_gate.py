"""A TCP gate before a server: open, shut (connections break, new ones are refused), silent (nothing passes) or slow."""

from __future__ import annotations

import contextlib
import socket
import time
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Gate:
    """Forwards to a port of 127.0.0.1 through one of its own."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._passing = Event()
        self._passing.set()
        self.delay = 0.0
        """Seconds that everything takes on its way."""
        self._lock = Lock()
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accept()

    def silence(self) -> None:
        """Let nothing through from now on, connections included that stay open."""
        self._passing.clear()

    def shut(self) -> None:
        """Break every connection and refuse new ones."""
        # A thread in accept() would keep the closed listener alive.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._passing.set()

    def open(self) -> None:
        """Let everything through again."""
        if self._listener.fileno() < 0:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self._accept()
        self._passing.set()

    def _accept(self) -> None:
        Thread(target=self._serve, args=(self._listener,), daemon=True).start()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            with self._lock:
                self._ends += [near, far]
            for source, sink in ((near, far), (far, near)):
                Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self._passing.wait()
                if self.delay:
                    time.sleep(self.delay)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def gate(target: int) -> Iterator[Gate]:
    """Put a gate before a port."""
    gate = Gate(target)
    yield gate
    gate.open()
    gate.shut()
