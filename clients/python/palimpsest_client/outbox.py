"""Turns that wait to be sent."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from palimpsest_client.errors import OutboxFullError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from palimpsest_client.errors import ApiError
    from palimpsest_client.results import KeptTurn

log: Final = logging.getLogger("palimpsest_client")
LIMIT: Final = 1_000
"""Turns; an hour of a busy backend whose service is away, and some tens of megabytes."""


class Outbox:
    """Turns in the order in which they are to be stored, one line a conversation; in memory, and bounded.

    limit: turns that may wait; one more raises OutboxFullError.
    on_kept, on_sent: called when a turn could not be sent, and when it was after all or was refused. A backend that
        is to survive its own restart stores the turn in the one and deletes it in the other, and hands what it finds
        at its start to `restore`.
    on_refused: called with a turn that the service will never take, and why. Without it such turns gather in `refused`.
    """

    def __init__(
        self,
        limit: int = LIMIT,
        *,
        on_kept: Callable[[KeptTurn, Exception | None], None] | None = None,
        on_sent: Callable[[KeptTurn], None] | None = None,
        on_refused: Callable[[KeptTurn, ApiError], None] | None = None,
    ) -> None:
        self.refused: list[tuple[KeptTurn, ApiError]] = []
        self._limit = limit
        self._on_kept = on_kept
        self._on_sent = on_sent
        self._on_refused = on_refused
        self._lines: dict[str, deque[KeptTurn]] = {}
        self._told: set[str] = set()
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
        """Return the conversations that have turns here."""
        with self._guard:
            return list(self._lines)

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

    def sent(self, turn: KeptTurn) -> None:
        """Take the first turn of a line away: it is stored."""
        self._take(turn)
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
