"""How much the runs of one process have read into memory: who finds no room waits, its lease kept alive."""

from __future__ import annotations

from threading import Condition
from typing import Final

MOST_BYTES: Final = 32 * 1024 * 1024
"""Bytes of stored messages that the runs of a process have in memory at a time; a context of 100,000 tokens is 0.4 MB.
Working on them takes up to ten times as many."""
PATIENCE_SECONDS: Final = 5.0
"""Seconds after which who waits looks again."""


class FullError(Exception):
    """A run wants to read more than there is room for now; nothing of it was read."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class Memory:
    """The room of a process, first come first served; safe to use from many threads."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._taken = 0
        self._line: dict[RunMemory, int] = {}
        """Who waits for how many bytes, in the order in which they came."""
        self._changed = Condition()

    def take(self, run: RunMemory, size: int) -> bool:
        """Take so many bytes, if there is room for them; return whether. Else the run waits for them from now on."""
        with self._changed:
            if not self._has_room(run, size):
                self._line.setdefault(run, size)
                return False
            self._taken += size
            self._leave(run)
            return True

    def give_back(self, run: RunMemory, size: int, *, waits: bool = False) -> None:
        """Give so many bytes back, and wait for no more unless that is said."""
        with self._changed:
            self._taken -= size
            if not waits:
                self._leave(run)
            self._changed.notify_all()

    def wait(self, run: RunMemory, size: int) -> None:
        """Return when there may be room for so many bytes."""
        with self._changed:
            self._changed.wait_for(lambda: run not in self._line or self._has_room(run, size), PATIENCE_SECONDS)

    def _has_room(self, run: RunMemory, size: int) -> bool:
        """Tell whether so many bytes fit beside what is taken, or nobody has any, and beside who has waited longest."""
        first = next(iter(self._line), run)
        if first is run:
            return not self._taken or self._taken + size <= self._most
        return self._taken + size + self._line[first] <= self._most

    def _leave(self, run: RunMemory) -> None:
        if self._line.pop(run, None) is not None:
            self._changed.notify_all()


class RunMemory:
    """What one run has of it: as much as the most that it has read at once, or has waited for."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._held = 0
        self._wanted = 0

    def take(self, size: int) -> None:
        """Have room for so many bytes; raise FullError."""
        self._wanted = max(size, self._wanted)
        more = max(0, self._wanted - self._held)
        if more and not self._memory.take(self, more):
            raise FullError(self._wanted)
        self._held += more

    def give_back(self) -> None:
        """Give all of it back, and wait for no more."""
        self._memory.give_back(self, self._held)
        self._held = self._wanted = 0

    def wait(self, size: int) -> None:
        """Give all of it back, and return when there may be room for so many bytes."""
        self._memory.give_back(self, self._held, waits=True)
        self._held = 0
        self._memory.wait(self, size)
