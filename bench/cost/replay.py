"""A conversation's calls under a schedule: when which head came into force, and what all calls cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bench.cost.ladder import NO_HEAD, Head, Recording
from compaction.cost.survival import Life, SurvivalCurve, share_of_pauses
from compaction.cost.swap import Decision, Ready, decide

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

    def call(self, number: int, before: Head, after: Head) -> Bill:
        """Return what one call costs that is sent `after`, where the one before it was sent `before`."""
        recording, prices = self.recording, self.prices
        count = recording.calls[number]
        total = recording.tokens(after, count)
        output = recording.sizes[count]
        if number == 0 or prices.is_cold(self.gaps[number]):
            return Bill(prices.cost(total, 0, output), 0, 1)
        had = recording.tokens(before, recording.calls[number - 1])
        cached = had if before is after else min(had, recording.shared(before, after, recording.calls[number - 1]))
        return Bill(prices.cost(total, cached, output), int(cached < had), 1)

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
        """Heads that wait until they pay, as the product decides it; `lives` are the tenant's conversations before."""
        waiting = _Waiting(self, SurvivalCurve(lives))
        return self.schedule(waiting.head_of)


def stored(recording: Recording, number: int) -> int:
    """Return how many messages were stored before a call's own turn: up to the answer before it."""
    return recording.calls[number - 1] + 1 if number else 0


def at_once(recording: Recording, head: Head, count: int) -> Head:
    if recording.is_due(head, count):
        return recording.climb(head, count) or head
    return head


class _Waiting:
    """What workers do with snapshots under `when_it_pays`, one conversation's life long."""

    def __init__(self, played: Played, curve: SurvivalCurve) -> None:
        self._played = played
        self._curve = curve
        self._ready: Head | None = None
        self._hold = 0
        """The next is made when the context has more tokens."""
        self._swapped = 0

    def head_of(self, number: int, head: Head) -> Head:
        played, recording = self._played, self._played.recording
        count = stored(recording, number)
        tokens = recording.tokens(head, count)
        if recording.is_due(head, count) and (self._ready is None or tokens > self._hold):
            # A check has brought about a run: of all that there is, whether or not another one waits.
            self._ready = recording.climb(head, count)
            self._hold = min(tokens + recording.margin, recording.policy.pending_limit_tokens - 1)
            if self._ready is not None and self._decision(number, head, self._ready).swaps:
                return self._swap(number, self._ready)
        if self._ready is not None and played.prices.is_cold(played.gaps[number]):
            # The sweeper has found that the cache is gone; the check that it asks for sees the rest.
            swapped = self._swap(number, self._ready)
            return at_once(recording, swapped, count)
        return head

    def _swap(self, number: int, head: Head) -> Head:
        self._ready, self._swapped = None, number
        return head

    def _decision(self, number: int, head: Head, made: Head) -> Decision:
        played, recording = self._played, self._played.recording
        count = stored(recording, number)
        ready = Ready(
            before=recording.tokens(head, count),
            after=recording.tokens(made, count),
            shared=recording.shared(head, made, count),
            limit=recording.policy.pending_limit_tokens,
            since=number - self._swapped,
        )
        pauses = share_of_pauses(played.gaps[1:number], played.prices.lifetime)
        return decide(ready, played.prices, self._curve.expected_turns(number, pauses))
