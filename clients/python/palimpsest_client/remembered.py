"""Contexts that were read before, to be used again while they are still the newest."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from palimpsest_client.forks import in_a_fork

if TYPE_CHECKING:
    from palimpsest_client.answers import Shape

Place = tuple[str, "Shape | None", "int | None"]
"""A conversation, the shape that was asked for, None = its own, and how many breakpoints of the prompt cache."""


class Remembered(NamedTuple):
    """An answer and its entity tag. The bytes are kept, so that nobody's changes to a context reach the next one."""

    etag: str
    body: bytes


class ContextMemory:
    """The contexts used last, each in its shapes, up to so many bytes; safe to use from several threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._begin()
        in_a_fork(self, ContextMemory._begin)

    def _begin(self) -> None:
        self._bytes = 0
        self._found: OrderedDict[Place, Remembered] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, place: Place) -> Remembered | None:
        """Return what is remembered of a conversation in a shape."""
        with self._guard:
            found = self._found.get(place)
            if found is not None:
                self._found.move_to_end(place)
            return found

    def put(self, place: Place, remembered: Remembered) -> None:
        """Remember an answer, and forget those used longest ago as far as it takes room."""
        with self._guard:
            self._drop(place)
            self._found[place] = remembered
            self._bytes += len(remembered.body)
            while self._bytes > self._most_bytes:
                self._drop(next(iter(self._found)))

    def forget(self, conversation_id: str) -> None:
        """Remember nothing of a conversation any more."""
        with self._guard:
            for place in [place for place in self._found if place[0] == conversation_id]:
                self._drop(place)

    def _drop(self, place: Place) -> None:
        found = self._found.pop(place, None)
        self._bytes -= len(found.body) if found else 0
