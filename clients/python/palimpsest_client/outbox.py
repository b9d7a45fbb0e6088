"""Turns that wait to be sent."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from palimpsest_client.errors import OutboxFullError
from palimpsest_client.forks import in_a_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from palimpsest_client.errors import ApiError
    from palimpsest_client.results import KeptTurn

log: Final = logging.getLogger("palimpsest_client")
HELD: Final = 100
"""Turns of all conversations; those of some seconds, which is what a standby of Postgres may lag."""
DOUBTED_SECONDS: Final = 3600.0
"""What was acknowledged longer ago has reached every standby, and its key may soon be forgotten."""
LIMIT: Final = 1_000
"""Turns; an hour of a busy backend whose service is away, and some tens of megabytes."""


class _Held(NamedTuple):
    """A turn that was stored, the first seq that it got, and when that was acknowledged."""

    turn: KeptTurn
    first_seq: int
    at: float


class Outbox:
    """Turns in the order in which they are to be stored, one line a conversation; in memory, and bounded.

    limit: turns that may wait; one more raises OutboxFullError.
    on_kept, on_sent: called when a turn could not be sent, and when it was after all or was refused. A backend that
        is to survive its own restart stores the turn in the one and deletes it in the other, and hands what it finds
        at its start to `restore`.
    on_refused: called with a turn that the service will never take, and why. Without it such turns gather in `refused`.
    held: turns, the last that were stored, that are put again where the service has lost them: its database failed over
        to a standby that did not have them yet, or was restored. 0 holds none.
    """

    def __init__(
        self,
        limit: int = LIMIT,
        *,
        on_kept: Callable[[KeptTurn, Exception | None], None] | None = None,
        on_sent: Callable[[KeptTurn], None] | None = None,
        on_refused: Callable[[KeptTurn, ApiError], None] | None = None,
        held: int = HELD,
    ) -> None:
        self.refused: list[tuple[KeptTurn, ApiError]] = []
        self._limit = limit
        self._on_kept = on_kept
        self._on_sent = on_sent
        self._on_refused = on_refused
        self._most_held = held
        self._begin()
        # What waits is its own process's to send: sent by two, a turn that others overtake would be stored twice.
        in_a_fork(self, Outbox._begin)

    def _begin(self) -> None:
        self._lines: dict[str, deque[KeptTurn]] = {}
        self._told: set[str] = set()
        self._held: deque[_Held] = deque(maxlen=self._most_held)
        """The last turns that were stored."""
        self._timeline: str | None = None
        """That of the service's database, as the last answer had it."""
        self._lost: dict[str, int] = {}
        """Conversations of which the service has lost turns, or may have, and the seq from which on they are."""
        self._guard = threading.Lock()

    def __len__(self) -> int:
        with self._guard:
            return sum(map(len, self._lines.values()))

    def restore(self, turns: Iterable[KeptTurn]) -> None:
        """Take turns that were kept before, oldest first."""
        for turn in turns:
            self.add(turn)
            self._told.add(turn.idempotency_key)

    def waiting(self, conversation_id: str) -> list[KeptTurn]:
        """Return the turns of a conversation, oldest first."""
        with self._guard:
            return list(self._lines.get(conversation_id, ()))

    def conversations(self) -> list[str]:
        """Return the conversations that have turns here to be sent."""
        with self._guard:
            return list({**self._lines, **self._lost})

    def lose(self, conversation_id: str, next_seq: int, known: int) -> None:
        """Note that a conversation goes on at an earlier seq than was acknowledged: what stood there is lost."""
        log.error("the service has lost messages of %s: %s of %s are there", conversation_id, next_seq, known)
        with self._guard:
            self._lost[conversation_id] = min(next_seq, self._lost.get(conversation_id, next_seq))

    def note_timeline(self, timeline: str | None) -> None:
        """Doubt what was acknowledged on another timeline: the standby that was promoted may not have had it.

        Others may have written in its place, so no seq tells. Sent again under its key, what is there stays as it is.
        """
        if timeline is None or timeline == self._timeline:
            return
        with self._guard:
            known, self._timeline = self._timeline, timeline
            if known in {None, timeline}:
                return
            since = time.monotonic() - DOUBTED_SECONDS
            doubted = [each for each in self._held if each.at >= since]
            for turn, first_seq, _ in doubted:
                lost = self._lost.get(turn.conversation_id, first_seq)
                self._lost[turn.conversation_id] = min(first_seq, lost)
        log.warning("the service's database was failed over: %s turns are sent again, lest they be lost", len(doubted))

    def put_again(self, conversation_id: str) -> None:
        """Put turns that are lost, and still held, before those that wait; only while nobody sends any of them."""
        with self._guard:
            since = self._lost.pop(conversation_id, None)
            if since is None:
                return
            of_it = (each for each in self._held if each.turn.conversation_id == conversation_id)
            lost = [each for each in of_it if each.first_seq >= since]
            if lost:
                self._held = deque((each for each in self._held if each not in lost), self._held.maxlen)
                line = self._lines.setdefault(conversation_id, deque())
                line.extendleft(each.turn for each in reversed(lost))

    def forget(self, conversation_id: str) -> None:
        """Hold nothing that was stored of an erased conversation."""
        with self._guard:
            self._lost.pop(conversation_id, None)
            kept = (each for each in self._held if each.turn.conversation_id != conversation_id)
            self._held = deque(kept, self._held.maxlen)

    def add(self, turn: KeptTurn) -> None:
        """Put a turn at the end of its conversation's line."""
        with self._guard:
            if sum(map(len, self._lines.values())) >= self._limit:
                raise OutboxFullError(turn, self._limit)
            self._lines.setdefault(turn.conversation_id, deque()).append(turn)

    def change(self, turn: KeptTurn) -> None:
        """Put another form of the first turn of a line in its place."""
        with self._guard:
            line = self._lines[turn.conversation_id]
            before, line[0] = line[0], turn
        if before.idempotency_key in self._told:
            self._tell_kept(turn, None)
            if turn.idempotency_key != before.idempotency_key:
                self._tell_sent(before)

    def keep(self, turn: KeptTurn, error: Exception | None) -> None:
        """Note that a turn stays here because of `error`."""
        if turn.idempotency_key not in self._told:
            log.warning("a turn of %s waits to be sent: %s", turn.conversation_id, error)
            self._tell_kept(turn, error)

    def sent(self, turn: KeptTurn, first_seq: int) -> None:
        """Take the first turn of a line away: it is stored, from that seq on."""
        self._take(turn)
        with self._guard:
            self._held.append(_Held(turn, first_seq, time.monotonic()))
        self._tell_sent(turn)

    def refuse(self, turn: KeptTurn, error: ApiError, *, told: bool) -> None:
        """Take the first turn of a line away: it will never be stored. told: its sender learns of it directly."""
        self._take(turn)
        if not told:
            log.error("a turn of %s that was kept is refused: %s", turn.conversation_id, error)
            if self._on_refused is not None:
                self._on_refused(turn, error)
            else:
                self.refused.append((turn, error))
        self._tell_sent(turn)

    def _take(self, turn: KeptTurn) -> None:
        with self._guard:
            line = self._lines[turn.conversation_id]
            line.popleft()
            if not line:
                del self._lines[turn.conversation_id]

    def _tell_kept(self, turn: KeptTurn, error: Exception | None) -> None:
        self._told.add(turn.idempotency_key)
        if self._on_kept is not None:
            self._on_kept(turn, error)

    def _tell_sent(self, turn: KeptTurn) -> None:
        if turn.idempotency_key in self._told:
            self._told.remove(turn.idempotency_key)
            if self._on_sent is not None:
                self._on_sent(turn)
