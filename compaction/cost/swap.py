"""Decides whether a prepared snapshot becomes the head now, or later when that is cheaper."""

from __future__ import annotations

from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING, Final, NamedTuple

from compaction.steps.ladder import cut_threshold, growth_margin

if TYPE_CHECKING:
    from compaction.cost.calls import CallPrices
    from compaction.policy import Policy


PATIENCE: Final = 0.75
"""Share of a swap's cost that resending the excess must have cost since the last swap before a warm prefix is broken.
With steady growth, the cheapest interval is where both are equal (the economic order quantity). Near it the cost
hardly changes, and a longer interval breaks the prefix less often."""

REGRET: Final = 1.0
"""Factor on a swap's cost. Once resending has cost as much, the swap no longer waits for a pause. This is the ski
rental rule: renting until it has cost as much as buying never costs more than twice the optimum."""


class Ground(StrEnum):
    """The ground of a decision."""

    LIMIT = "limit"
    """The context is over a threshold of the policy."""
    UNPRICED = "unpriced"
    """Prices are unknown."""
    BROKEN = "broken"
    """The cached prefix will not be read again anyway."""
    COLD = "cold"
    """The cache has expired since the last call."""
    PAYS = "pays"
    """The savings before the next pause and since the last swap exceed the cost of rewriting the prefix."""
    WARM = "warm"
    """The cached prefix saves more than the snapshot would."""


class Bounds(NamedTuple):
    """The policy's upper limits for a context, in tokens."""

    budget: int
    """Tokens above which tool results are cut. 0 disables it."""
    hard: int
    """Tokens above which nothing waits: the lowest of the summary's threshold, the window and the budget."""
    large: int
    """Tokens that a step of the ladder is meant to free."""

    def are_exceeded(self, tokens: int) -> bool:
        """Return whether a context of `tokens` exceeds any bound."""
        return tokens > self.hard or 0 < self.budget < tokens

    def relieves_threshold(self, before: int, after: int) -> bool:
        """Return whether going from `before` to `after` tokens meets a threshold that the context exceeds.

        A cut that stays above the tool-result budget does not count: now or later, the context is over the budget and
        under the next threshold.
        """
        if before > self.hard:
            return True
        return 0 < self.budget < before and (after <= self.budget or before - after >= self.large)


def bounds_of(policy: Policy) -> Bounds:
    """Return the upper limits of a policy."""
    hard = min(policy.compaction_threshold_tokens, policy.pending_limit_tokens - 1)
    return Bounds(policy.input_token_budget, hard, growth_margin(cut_threshold(policy) or hard, policy))


class SwapCandidate(NamedTuple):
    """A prepared snapshot and its conversation, in tokens and seconds.

    `before` and `after` are the tokens of the next call without and with it, `shared` their common prefix. `gap` is the
    time since the last call.
    """

    before: int
    after: int
    shared: int
    bounds: Bounds
    gap: float = 0.0
    is_broken: bool = False
    """Whether the head has moved since the last call."""
    since: int = 0
    """Calls since the last swap, or since the beginning."""


class ExpectedCourse(NamedTuple):
    """The expected course of a conversation."""

    turns: float
    """Expected turns until the end."""
    pauses: float
    """Share of turns that follow a pause."""


class Decision(NamedTuple):
    """Whether a snapshot becomes the head, with the ground and the figures."""

    swaps: bool
    ground: Ground
    saves_usd: float = 0.0
    """USD saved over the expected turns."""
    costs_usd: float = 0.0
    """USD for rewriting the cached tokens."""
    turns: float = 0.0
    """Expected turns before a pause or the end."""


def decide_swap(ready: SwapCandidate, prices: CallPrices | None, expected_turns: float) -> Decision:
    """Return whether a snapshot becomes the head now.

    It does if a threshold of the policy requires it, whatever the prices, or if prices are unknown. Otherwise, with a
    warm cache, it does if rewriting the prefix costs less than the savings before the next pause, and no more than
    resending the excess has cost since the last swap.
    """
    presses = ready.bounds.relieves_threshold(ready.before, ready.after)
    if prices is None or not prices.is_usable:
        return Decision(swaps=True, ground=Ground.LIMIT if presses else Ground.UNPRICED)
    turns = max(0.0, expected_turns) if isfinite(expected_turns) else 0.0
    freed = max(0, ready.before - ready.after)
    saved = freed * prices.resend_price * turns
    cost = max(0, ready.after - max(0, ready.shared)) * prices.rewrite_premium
    carried = freed * prices.resend_price * max(0, ready.since) / 2
    if presses:
        ground = Ground.LIMIT
    elif ready.is_broken:
        ground = Ground.BROKEN
    elif prices.is_cold(ready.gap):
        ground = Ground.COLD
    elif (saved > cost and carried >= PATIENCE * cost) or (freed > 0 and carried >= REGRET * cost):
        ground = Ground.PAYS
    else:
        ground = Ground.WARM
    return Decision(ground is not Ground.WARM, ground, saved, cost, turns)


def is_worth_summary(freed: int, prices: CallPrices | None, expected: ExpectedCourse, usd: float) -> bool:
    """Return whether a summary in a pause, below the thresholds, is worth the `usd` that it costs.

    The call after the pause would write the freed tokens to the cache, as would calls after further pauses. The other
    calls would read them.
    """
    if prices is None or not prices.is_usable or not isfinite(usd):
        return False
    turns = max(0.0, expected.turns) if isfinite(expected.turns) else 0.0
    pauses = min(1.0, max(0.0, expected.pauses)) if isfinite(expected.pauses) else 0.0
    per_turn = prices.resend_price + pauses * (prices.uncached_price - prices.resend_price)
    # A call after the pause is as uncertain as any next turn.
    return max(0, freed) * (prices.uncached_price * min(1.0, turns) + per_turn * turns) > usd
