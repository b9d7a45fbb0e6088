"""Calls that write, and whether any of them is answered: where none is, they leave the connections to what is read.

A server whose disk takes nothing, or whose standby does not answer, still serves what it has; whoever writes waits for
the end of that, and cannot even be cancelled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SILENT_SECONDS: Final = 1.0
"""Seconds without any answer, where each comes within milliseconds, after which the server counts as taking nothing."""
FEWEST: Final = 2
"""Calls that are tried all the same where there are connections: one that waits for a row is not the server."""


class Writes:
    """Counts the calls that write; at most half of the connections are theirs while none of them is answered."""

    def __init__(self, connections: int, clock: Callable[[], float]) -> None:
        """Begin with none; `clock` tells the seconds that have passed."""
        self._connections = connections
        self._half = max(1, connections // 2)
        self._clock = clock
        self._under_way = 0
        self._unanswered = 0
        """How many were given up since the last answer."""
        self._heard = 0.0

    def stuck(self, closing: int = 0) -> int:
        """Return how many connections are taken by calls that the server does not answer.

        closing: how many are being closed after such calls, which it answers as little.
        """
        return min(self._under_way + closing, self._connections) if self._is_silent() else 0

    def begin(self) -> None:
        """Count a call in. Raises TimeoutError where it would only wait with the others."""
        if self._under_way >= max(min(FEWEST, self._half), self._half - self._unanswered) and self._is_silent():
            raise TimeoutError("what is written is not answered")
        if not self._under_way and not self._unanswered:
            self._heard = self._clock()
        self._under_way += 1

    def end(self) -> None:
        """Count a call out."""
        self._under_way -= 1

    def answered(self) -> None:
        """Note that the server has answered a call."""
        self._heard = self._clock()
        self._unanswered = 0

    def unanswered(self) -> None:
        """Note that a call was given up for want of an answer."""
        self._unanswered += 1

    def _is_silent(self) -> bool:
        return self._clock() - self._heard > SILENT_SECONDS
