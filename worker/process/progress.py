"""What the tasks of a process are at, and when each of them last got on."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Stuck(NamedTuple):
    """A task that does not get on, and the seconds since it last did."""

    task: str
    seconds: float


class Progress:
    """Knows which threads are at a task. A transaction that ends is progress, and so is a lease that could be extended.

    Safe to use from many threads; `clock` counts seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._marks: dict[int, tuple[str, float]] = {}

    def forget(self) -> None:
        """Begin anew, in a process that was forked off: another thread may have held the lock at that moment."""
        self._lock = threading.Lock()
        self._marks = {}

    @contextmanager
    def task(self, name: str) -> Iterator[None]:
        """Watch over what the calling thread does in the block."""
        with self._lock:
            self._marks[threading.get_ident()] = name, self._clock()
        try:
            yield
        finally:
            with self._lock:
                self._marks.pop(threading.get_ident(), None)

    def mark(self) -> None:
        """Note that the calling thread's task got on; anywhere else this does nothing."""
        thread = threading.get_ident()
        with self._lock:
            if thread in self._marks:
                self._marks[thread] = self._marks[thread][0], self._clock()

    def stuck(self, seconds: float) -> list[Stuck]:
        """Return the tasks that have not got on for longer than `seconds`, the worst first."""
        now = self._clock()
        with self._lock:
            stuck = [Stuck(name, now - at) for name, at in self._marks.values() if now - at > seconds]
        return sorted(stuck, key=lambda stuck: -stuck.seconds)
