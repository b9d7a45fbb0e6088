"""What the sweep has sent already: a queue that nobody empties must not fill up with the same wake-ups."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from runtime.settings import Settings

T = TypeVar("T")

AGAIN_SECONDS: Final = 60.0
"""Seconds after which something is sent again although messages still wait; every further time doubles them."""


class Errand(NamedTuple):
    """Work that waits in rows of its own, besides checks and runs."""

    name: str
    table: str
    task: str
    """What a worker is sent, with the tenant and the row's id."""
    due: Callable[[Connection, int], Sequence[tuple[UUID, UUID, Hashable]]]
    """Returns (row, tenant, what tells this time from an earlier one) of at most so many."""
    expire: Callable[[Connection, float, int], int]
    """Removes rows that were over so many seconds ago, at most so many, and returns how many."""
    retention_days: Callable[[Settings], float]
    """Returns the days for which they are kept, 0 for ever."""


class _Sent(NamedTuple):
    episode: Hashable
    next_at: float
    wait: float


class Sent:
    """Remembers wake-ups for as long as what they are about is left to do.

    One is sent again when the queue is empty, so that it must have got lost, and otherwise ever more rarely: however
    long workers are away, the messages of one thing grow with the logarithm of the time. Forgetting all of it, as a
    new process does, costs one message for each. With `absent_count` what is not due for a while may still be the same.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, absent_count: bool = False) -> None:
        self._clock = clock
        self._absent_count = absent_count
        self._sent: dict[UUID, _Sent] = {}

    def unsent(
        self, due: Iterable[T], identify: Callable[[T], tuple[UUID, Hashable]], *, queue_is_empty: bool
    ) -> list[T]:
        """Return what is to be sent of everything that is due; the rest is forgotten.

        `identify` returns an id and what tells this time from an earlier one with the same id.
        """
        now = self._clock()
        kept = self._recent(now) if self._absent_count else {}
        unsent = []
        for item in due:
            key, episode = identify(item)
            sent = self._sent.get(key)
            if sent is not None and sent.episode == episode:
                kept[key] = sent
                if not queue_is_empty and now < sent.next_at:
                    continue
            unsent.append(item)
        self._sent = kept
        return unsent

    def remember(self, items: Iterable[Any], identify: Callable[[Any], tuple[UUID, Hashable]]) -> None:
        """Note that wake-ups have been sent."""
        now = self._clock()
        for item in items:
            key, episode = identify(item)
            before = self._sent.get(key)
            wait = AGAIN_SECONDS if before is None else before.wait * 2
            self._sent[key] = _Sent(episode, now + wait, wait)

    def _recent(self, now: float) -> dict[UUID, _Sent]:
        return {key: sent for key, sent in self._sent.items() if now < sent.next_at + sent.wait}
