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
    """The room of a process; safe to use from many threads."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._taken = 0
        self._changed = Condition()

    def take(self, size: int) -> bool:
        """Take so many bytes, if there is room for them, or nobody else has any; return whether."""
        with self._changed:
            has_room = not self._taken or self._taken + size <= self._most
            self._taken += size if has_room else 0
            return has_room

    def give_back(self, size: int) -> None:
        """Give so many bytes back."""
        with self._changed:
            self._taken -= size
            self._changed.notify_all()

    def wait(self, size: int) -> None:
        """Return when there may be room for so many bytes."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + size <= self._most, PATIENCE_SECONDS)


class RunMemory:
    """What one run has of it: as much as the most that it has read at once."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._held = 0

    def take(self, size: int) -> None:
        """Have room for so many bytes; raise FullError."""
        more = max(0, size - self._held)
        if more and not self._memory.take(more):
            raise FullError(size)
        self._held += more

    def give_back(self) -> None:
        """Give all of it back."""
        self._memory.give_back(self._held)
        self._held = 0

    def wait(self, size: int) -> None:
        """Give all of it back, and return when there may be room for so many bytes."""
        self.give_back()
        self._memory.wait(size)
