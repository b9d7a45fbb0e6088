"""What the clients of a soak know of their conversations: what was sent, and what of it was acknowledged."""

from __future__ import annotations

import hashlib
import itertools
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

_MOST_BROKEN: Final = 200
"""Breaches that are kept word for word; the rest is counted."""


def digest(text: str) -> bytes:
    """Return what stands for a content's JSON text: nothing of hours of conversation has to be kept."""
    return hashlib.sha256(text.encode()).digest()[:16]


class Sent(NamedTuple):
    """A message as it was sent."""

    role: str
    digest: bytes
    mark: str
    speaks: bool
    """It is text alone, so that the context has to show it whatever was stored before it."""


@dataclass(eq=False, slots=True)
class Turn:
    """A turn that was sent; `first_seq` is known once it was acknowledged, and `refused` that it was not stored."""

    messages: tuple[Sent, ...]
    replace_from: int | None
    sent_at: float
    acknowledged_at: float | None = None
    first_seq: int | None = None
    refused: bool = False


class Base(NamedTuple):
    """A message that a fork began with."""

    seq: int
    message: Sent


@dataclass(eq=False)
class KnownConversation:
    """A conversation as those who take part in it know it."""

    id: str
    uuid: UUID
    tenant: int
    shape: str
    family: int
    """The number of the conversation that it descends from: marks of messages begin with it."""
    base: tuple[Base, ...] = ()
    turns: list[Turn] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    versions: set[int] = field(default_factory=set)
    """Snapshots that were looked at."""
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def begin(self, turn: Turn) -> None:
        """Note a turn before it is sent."""
        with self.lock:
            self.turns.append(turn)

    def all_turns(self) -> list[Turn]:
        """Return every turn that was ever sent."""
        with self.lock:
            return list(self.turns)

    @property
    def next_seq(self) -> int:
        """The seq after the last one that is known."""
        known = [turn.first_seq + len(turn.messages) for turn in self.all_turns() if turn.first_seq is not None]
        return max(known, default=self.base[-1].seq + 1 if self.base else 0)

    @property
    def certain(self) -> bool:
        """Whether every turn is known to be stored, or not to be."""
        return all(turn.refused or turn.first_seq is not None for turn in self.all_turns())

    def live(self) -> list[Base]:
        """Return the messages that were not replaced, oldest first; all of them where the conversation is certain."""
        rows = list(self.base)
        known = [(turn.first_seq, turn) for turn in self.all_turns() if turn.first_seq is not None]
        for first, turn in sorted(known, key=lambda pair: pair[0]):
            if turn.replace_from is not None:
                rows = [row for row in rows if row.seq < turn.replace_from]
            rows += [Base(first + place, message) for place, message in enumerate(turn.messages)]
        return rows


class Breach(NamedTuple):
    """An invariant that did not hold."""

    at: float
    """Seconds since the load began."""
    invariant: str
    conversation: str
    detail: str


class Breaches:
    """The breaches so far; usable from several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._first: list[Breach] = []
        self.count = 0

    def add(self, invariant: str, conversation: str, detail: str) -> None:
        """Note a breach."""
        with self._lock:
            self.count += 1
            if len(self._first) < _MOST_BROKEN:
                self._first.append(Breach(self._clock(), invariant, conversation, detail[:2_000]))

    @property
    def first(self) -> Sequence[Breach]:
        """The first of them, oldest first."""
        with self._lock:
            return list(self._first)
