"""The best possible schedule: which head when, chosen with knowledge of every call and gap that is to come.

Computed backwards by dynamic programming over swap points: what the rest of a conversation costs at least, after a
head came into force at a call, is the cheapest of all next swaps, with the calls up to it and what the rest costs from
there. Heads are those that the ladder makes, from where a step is due to where the limit presses.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from bench.cost.ladder import NO_HEAD, Head
from bench.cost.replay import Bill, stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.cost.ladder import Recording
    from bench.cost.replay import Played

GRID: Final = 40
"""Swap points that are tried of a conversation, evenly spread, besides those at pauses and thresholds."""


class SwapPoints:
    """The heads of a conversation at swap points, the same for all gaps and prices: they are made once."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._heads: dict[tuple[int, int], Head] = {(0, 0): NO_HEAD}

    def after(self, head: Head, number: int) -> Head | None:
        """Return the head that a run makes before a call; None where nothing comes of it.

        Two that were made at the same call, since the same summary, show the same.
        """
        recording, count = self._recording, stored(self._recording, number)
        is_summary_due = recording.tokens(head, count) > recording.policy.compaction_threshold_tokens
        made = self._heads.get((count if is_summary_due else head.summarized, count))
        if made is None:
            made = recording.climb(head, count)
            if made is not None:
                made = self._heads.setdefault((made.summarized, count), made)
        return made


def best(played: Played, points: SwapPoints) -> Bill:
    """Return what the calls cost under the cheapest schedule."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 20_000))
    return _Best(played, points).rest(NO_HEAD, 0)


class _Best:
    def __init__(self, played: Played, points: SwapPoints) -> None:
        self._played = played
        self._recording = played.recording
        self._points = points
        self._known: dict[tuple[int, int], Bill] = {}

    def rest(self, head: Head, number: int) -> Bill:
        """Return what calls after `number` cost at least, where `head` came into force at that one."""
        key = (id(head), number)
        if key not in self._known:
            self._known[key] = self._cheapest(head, number)
        return self._known[key]

    def _cheapest(self, head: Head, number: int) -> Bill:
        least: Bill | None = None
        spent = Bill() if number else self._played.call(0, head, head) if self._recording.calls else Bill()
        points = set(self._next(head, number))
        last = len(self._recording.calls)
        for at in range(number + 1, last):
            if at in points and (made := self._points.after(head, at)) is not None and made is not head:
                total = spent.plus(self._played.call(at, head, made)).plus(self.rest(made, at))
                least = total if least is None or total.usd < least.usd else least
                if self._presses(head, at):
                    return least
            spent = spent.plus(self._played.call(at, head, head))
        return spent if least is None or spent.usd < least.usd else least

    def _presses(self, head: Head, at: int) -> bool:
        count = stored(self._recording, at)
        return self._recording.tokens(head, count) >= self._recording.policy.pending_limit_tokens

    def _next(self, head: Head, number: int) -> Iterator[int]:
        """Yield the calls before which another head may come into force."""
        recording, last = self._recording, len(self._recording.calls)
        every = max(1, last // GRID)
        first = next((at for at in range(number + 1, last) if recording.is_due(head, stored(recording, at))), None)
        if first is None:
            return
        for at in range(first, last):
            is_cold = self._played.prices.is_cold(self._played.gaps[at])
            if at == first or at % every == 0 or is_cold or self._presses(head, at):
                yield at
