"""Contexts that were read before, to be used again while they are still the newest."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple


class Remembered(NamedTuple):
    """An answer and its entity tag. The bytes are kept, so that nobody's changes to a context reach the next one."""

    etag: str
    body: bytes


class ContextMemory:
    """The contexts used last, up to so many bytes; safe to use from several threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._found: OrderedDict[str, Remembered] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, conversation_id: str) -> Remembered | None:
        """Return what is remembered of a conversation."""
        with self._guard:
            found = self._found.get(conversation_id)
            if found is not None:
                self._found.move_to_end(conversation_id)
            return found

    def put(self, conversation_id: str, remembered: Remembered) -> None:
        """Remember an answer, and forget those used longest ago as far as it takes room."""
        with self._guard:
            self._drop(conversation_id)
            self._found[conversation_id] = remembered
            self._bytes += len(remembered.body)
            while self._bytes > self._most_bytes:
                self._drop(next(iter(self._found)))

    def forget(self, conversation_id: str) -> None:
        """Remember nothing of a conversation any more."""
        with self._guard:
            self._drop(conversation_id)

    def _drop(self, conversation_id: str) -> None:
        found = self._found.pop(conversation_id, None)
        self._bytes -= len(found.body) if found else 0
