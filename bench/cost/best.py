"""The best possible schedule: which head when, chosen with knowledge of every call and gap that is to come.

Computed backwards by dynamic programming over swap points: what the rest of a conversation costs at least, after a
head came into force at a call, is the cheapest of all next swaps, with the calls up to it and what the rest costs from
there. Heads are those that the policy lets the ladder make: from where a step is due to where the limit presses, and in
pauses from where work is done ahead of time.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from bench.cost.ladder import NO_HEAD, Head
from bench.cost.replay import Bill, stored
from compaction.cost.swap import bounds_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.cost.ladder import Recording
    from bench.cost.replay import Played

GRID: Final = 40
"""Swap points that are tried of a conversation, evenly spread, besides those at pauses and thresholds."""


class SwapPoints:
    """The heads of a conversation at swap points, the same for all gaps and prices: each is made once."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._heads: dict[tuple[int, int], Head] = {(0, 0): NO_HEAD}

    def after(self, head: Head, number: int) -> Head | None:
        """Return the head that a run makes before a call; None where nothing comes of it.

        Below the thresholds it is the one that is made in a pause. Two of the same call, since the same summary, show
        the same.
        """
        recording, count = self._recording, stored(self._recording, number)
        in_pause = not recording.is_due(head, count)
        policy = recording.pause.early_policy if in_pause else recording.policy
        is_summary_due = recording.tokens(head, count) > policy.compaction_threshold_tokens
        key = (count if is_summary_due else head.summarized, count)
        if key not in self._heads:
            ready = recording.climb(head, count, in_pause=in_pause)
            if ready is None:
                return None
            self._heads.setdefault((ready.summarized, count), ready)
        return self._heads.get(key)


def best(played: Played, points: SwapPoints) -> Bill:
    """Return what the calls cost under the cheapest schedule."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 20_000))
    return _Best(played, points).rest(NO_HEAD, 0)


class _Best:
    def __init__(self, played: Played, points: SwapPoints) -> None:
        self._played = played
        self._recording = played.recording
        self._points = points
        self._bounds = bounds_of(played.recording.policy)
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
        for at, ready, presses in self._swaps(head, number):
            for between in range(self._paid(number, spent), at):
                spent = spent.plus(self._played.call(between, head, head))
            total = spent.plus(self._played.call(at, head, ready)).plus(self.rest(ready, at))
            least = total if least is None or total.usd < least.usd else least
            if presses:
                return least
        for between in range(self._paid(number, spent), len(self._recording.calls)):
            spent = spent.plus(self._played.call(between, head, head))
        return spent if least is None or spent.usd < least.usd else least

    def _paid(self, number: int, spent: Bill) -> int:
        """Return the first call that is not in a bill which begins after `number`, or with the first of all."""
        return number + spent.calls + (1 if number else 0)

    def _swaps(self, head: Head, number: int) -> Iterator[tuple[int, Head, bool]]:
        """Yield the calls before which another head may come into force, with it, and whether it has to."""
        recording, last = self._recording, len(self._recording.calls)
        every = max(1, last // GRID)
        is_due = is_due_in_pause = False
        for at in range(number + 1, last):
            count = stored(recording, at)
            # What is due once is due until another head comes.
            was_due, is_due = is_due, is_due or recording.is_due(head, count)
            is_due_in_pause = is_due_in_pause or recording.is_due(head, count, in_pause=True)
            is_cold = is_due_in_pause and self._played.prices.is_cold(self._played.gaps[at])
            if not (is_due or is_cold) or (ready := self._points.after(head, at)) is None or ready is head:
                continue
            presses = is_due and self._bounds.relieves_threshold(
                recording.tokens(head, count), recording.tokens(ready, count)
            )
            if presses or is_cold or not was_due or at % every == 0:
                yield at, ready, presses
