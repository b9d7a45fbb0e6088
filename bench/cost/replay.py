"""A conversation's calls under a schedule: when which head came into force, and what all calls cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bench.cost.ladder import NO_HEAD, Head, Recording
from compaction.cost.depth import choose_depth
from compaction.cost.survival import Life, SurvivalCurve, share_of_pauses
from compaction.cost.swap import Decision, ExpectedCourse, SwapCandidate, bounds_of, decide_swap, is_worth_summary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from compaction.cost.calls import CallPrices


class Bill(NamedTuple):
    """What calls cost, and how many of them lost what was still cached of the prefix."""

    usd: float = 0.0
    breaks: int = 0
    calls: int = 0

    def plus(self, other: Bill) -> Bill:
        """Return both together."""
        return Bill(self.usd + other.usd, self.breaks + other.breaks, self.calls + other.calls)


class Played(NamedTuple):
    """A conversation, the seconds before each of its calls, and what a token costs."""

    recording: Recording
    gaps: Sequence[float]
    prices: CallPrices
    summarizer: CallPrices
    """What a token costs in calls that write summaries, which read nothing from a cache."""

    def summary_usd(self, head: Head) -> float:
        """Return what the summary cost that a head came with."""
        return head.summary_read * self.summarizer.input + head.summary_written * self.summarizer.output

    def call(self, number: int, before: Head, after: Head) -> Bill:
        """Return what one call costs that is sent `after`, where the one before it was sent `before`.

        With what the summary cost that another head came with.
        """
        recording, prices = self.recording, self.prices
        count = recording.calls[number]
        total = recording.tokens(after, count)
        output = recording.sizes[count]
        summary = 0.0 if before is after else self.summary_usd(after)
        if number == 0 or prices.is_cold(self.gaps[number]):
            return Bill(prices.cost(total, 0, output) + summary, 0, 1)
        had = recording.tokens(before, recording.calls[number - 1])
        cached = had if before is after else min(had, recording.shared(before, after, recording.calls[number - 1]))
        return Bill(prices.cost(total, cached, output) + summary, int(cached < had), 1)

    def schedule(self, head_of: Callable[[int, Head], Head]) -> Bill:
        """Return what all calls cost; `head_of` tells the head of each, from its number and the head before it."""
        bill, head = Bill(), NO_HEAD
        for number in range(len(self.recording.calls)):
            now = head_of(number, head)
            bill = bill.plus(self.call(number, head, now))
            head = now
        return bill

    @property
    def none(self) -> Bill:
        """Without compaction."""
        return self.schedule(lambda _, head: head)

    @property
    def thresholds(self) -> Bill:
        """What is due is in force at the next call."""
        return self.schedule(lambda number, head: at_once(self.recording, head, stored(self.recording, number)))

    @property
    def keep_last(self) -> Bill:
        """The newest messages alone, as many as the fallback leaves: a window that slides with each call."""
        recording, prices = self.recording, self.prices
        bill, first, sent = Bill(), 0, 0
        for number, count in enumerate(recording.calls):
            start, tokens = recording.newest(count, recording.policy.max_conversation_messages)
            total = recording.fixed + tokens
            warm = number > 0 and not prices.is_cold(self.gaps[number])
            cached = (sent if start == first else recording.fixed) if warm else 0
            bill = bill.plus(Bill(prices.cost(total, cached, recording.sizes[count]), int(warm and start != first), 1))
            first, sent = start, total
        return bill

    def break_even(self, lives: Sequence[Life]) -> Bill:
        """Heads that come when they pay, as the product decides it; `lives` are the tenant's conversations before."""
        return self.schedule(_WhenItPays(self, SurvivalCurve(lives)).head_of)


def stored(recording: Recording, number: int) -> int:
    """Return how many messages were stored before a call's own turn: up to the answer before it."""
    return recording.calls[number - 1] + 1 if number else 0


def at_once(recording: Recording, head: Head, count: int) -> Head:
    if recording.is_due(head, count):
        return recording.climb(head, count) or head
    return head


class _WhenItPays:
    """What workers do under `when_it_pays`, one conversation's life long."""

    def __init__(self, played: Played, curve: SurvivalCurve) -> None:
        self._played = played
        self._curve = curve
        self._hold = 0
        """A cut that did not pay is looked at again when the context has more tokens."""
        self._swapped = 0

    def head_of(self, number: int, head: Head) -> Head:
        played, recording = self._played, self._played.recording
        count = stored(recording, number)
        if recording.is_due(head, count, hold=self._hold):
            # The check after the turn before: nobody knows yet whether a pause comes.
            ready = self._as_deep_as_it_pays(number, head, recording.climb(head, count))
            if ready is not None and self._decision(number, head, ready).swaps:
                return self._swap(number, ready)
            self._hold = recording.tokens(head, count) + recording.margin
        if played.prices.is_cold(played.gaps[number]) and recording.is_due(head, count, hold=self._hold, in_pause=True):
            ready = recording.climb(head, count, in_pause=True)
            if ready is not None and self._is_worth_it(number, ready, recording.tokens(head, count)):
                return self._swap(number, ready)
        return head

    def _as_deep_as_it_pays(self, number: int, head: Head, deepest: Head | None) -> Head | None:
        if deepest is None or not deepest.depths:
            return deepest
        recording, count = self._played.recording, stored(self._played.recording, number)
        before, bounds = recording.tokens(head, count), bounds_of(recording.policy)
        choice = choose_depth(deepest.depths, before, bounds, self._played.prices, self._turns(number))
        if choice.depth is deepest.depths[0]:
            return deepest
        return recording.climb(head, count, start=choice.depth.start) or deepest

    def _swap(self, number: int, head: Head) -> Head:
        self._hold, self._swapped = 0, number
        return head

    def _decision(self, number: int, head: Head, ready: Head) -> Decision:
        return decide_swap(self._ready(number, head, ready), self._played.prices, self._turns(number))

    def _is_worth_it(self, number: int, ready: Head, before: int) -> bool:
        if ready.summary_read == 0:
            return True
        played = self._played
        freed = before - played.recording.tokens(ready, stored(played.recording, number))
        expected = ExpectedCourse(self._curve.expected_turns(number), self._pauses(number))
        return is_worth_summary(freed, played.prices, expected, played.summary_usd(ready))

    def _ready(self, number: int, head: Head, ready: Head) -> SwapCandidate:
        recording = self._played.recording
        count = stored(recording, number)
        return SwapCandidate(
            before=recording.tokens(head, count),
            after=recording.tokens(ready, count),
            shared=recording.shared(head, ready, count),
            bounds=bounds_of(recording.policy),
            since=number - self._swapped,
        )

    def _turns(self, number: int) -> float:
        return self._curve.expected_turns(number, self._pauses(number))

    def _pauses(self, number: int) -> float:
        return share_of_pauses(self._played.gaps[1:number], self._played.prices.lifetime)
