"""Whether a snapshot that is ready becomes the head now, or waits until that is cheap: a question of price."""

from __future__ import annotations

from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING, Final, NamedTuple

from compaction.steps.ladder import cut_threshold, growth_margin

if TYPE_CHECKING:
    from compaction.cost.calls import CallPrices
    from compaction.policy import Policy


PATIENCE: Final = 0.75
"""Of what a swap costs, the share that carrying the excess has to have cost since the last one before a warm prefix is
broken. Where growth is even, the cheapest interval is where both are equal, as in any economic order quantity; near it
the bill hardly changes, and the longer interval breaks the prefix less often."""

REGRET: Final = 1.0
"""Times what a swap costs: where carrying has cost as much, no pause that may come is waited for any longer. Whoever
rents until that has cost as much as to buy never pays more than twice what the best would have been."""


class Ground(StrEnum):
    """What a decision rests on."""

    LIMIT = "limit"
    """The context is over a threshold of the policy."""
    UNPRICED = "unpriced"
    """Nobody knows what a call costs."""
    BROKEN = "broken"
    """What was cached will not be read again anyway."""
    COLD = "cold"
    """The cache has gone since the last call."""
    PAYS = "pays"
    """What it saves, before the next pause and since the last swap, is worth writing the prefix anew."""
    WARM = "warm"
    """The cache is of more use than the snapshot would be."""


class Bounds(NamedTuple):
    """The policy's upper limits for a context, in tokens."""

    budget: int
    """Over it tool results are cut; 0 = off."""
    hard: int
    """Over it nothing is put off: the lowest of the summary's threshold and of where the window or the budget ends."""
    large: int
    """What frees as much as this is a step as large as the ladder means them to be."""

    def are_passed(self, tokens: int) -> bool:
        """Tell whether a context of so many tokens is over any of them."""
        return tokens > self.hard or 0 < self.budget < tokens

    def press(self, before: int, after: int) -> bool:
        """Tell whether going from `before` to `after` tokens answers a threshold that the context is over.

        A cut that leaves the context over the budget for tool results answers none: whether it is made now or with the
        next, the context is over the budget, and under the next threshold.
        """
        if before > self.hard:
            return True
        return 0 < self.budget < before and (after <= self.budget or before - after >= self.large)


def bounds_of(policy: Policy) -> Bounds:
    """Return the upper limits of a policy."""
    hard = min(policy.compaction_threshold_tokens, policy.pending_limit_tokens - 1)
    return Bounds(policy.input_token_budget, hard, growth_margin(cut_threshold(policy) or hard, policy))


class Ready(NamedTuple):
    """A snapshot that is ready, and the conversation that it may become the head of; in tokens and seconds.

    `before` and `after` are those of the next call without and with it, `shared` those that both begin with. `gap` is
    the time since the last call.
    """

    before: int
    after: int
    shared: int
    bounds: Bounds
    gap: float = 0.0
    is_broken: bool = False
    """Whether the head has moved since the last call."""
    since: int = 0
    """Calls since the last snapshot became the head, or since the beginning."""


class ExpectedCourse(NamedTuple):
    """How a conversation is expected to go on."""

    turns: float
    """To its end."""
    pauses: float
    """Share of them that come after one."""


class Decision(NamedTuple):
    """Whether a snapshot becomes the head, on what ground, and what that was reckoned from."""

    swaps: bool
    ground: Ground
    saves_usd: float = 0.0
    """Over the turns that are expected."""
    costs_usd: float = 0.0
    """Of writing anew what the cache has."""
    turns: float = 0.0
    """That are expected before a pause or the end."""


def decide(ready: Ready, prices: CallPrices | None, expected_turns: float) -> Decision:
    """Return whether a snapshot becomes the head now.

    Whatever prices, clocks and usage say, it does where a threshold of the policy asks for it, and where nothing is
    known of prices. Else, with a warm cache, it does where writing the prefix anew costs less than what is saved before
    the next pause, and no more than carrying the excess has cost since the last time: what is not worth that yet grows
    until it is.
    """
    presses = ready.bounds.press(ready.before, ready.after)
    if prices is None or not prices.are_known:
        return Decision(swaps=True, ground=Ground.LIMIT if presses else Ground.UNPRICED)
    turns = max(0.0, expected_turns) if isfinite(expected_turns) else 0.0
    freed = max(0, ready.before - ready.after)
    saved = freed * prices.carrying * turns
    cost = max(0, ready.after - max(0, ready.shared)) * prices.rewriting
    carried = freed * prices.carrying * max(0, ready.since) / 2
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
    """Tell whether a summary that is asked for in a pause, below the thresholds, is worth the `usd` that it costs.

    What it frees the call after the pause would write to the cache, as would those after further pauses; the others
    would read it.
    """
    if prices is None or not prices.are_known or not isfinite(usd):
        return False
    turns = max(0.0, expected.turns) if isfinite(expected.turns) else 0.0
    pauses = min(1.0, max(0.0, expected.pauses)) if isfinite(expected.pauses) else 0.0
    per_turn = prices.carrying + pauses * (prices.written - prices.carrying)
    # Whether there is a call after the pause at all is as uncertain as the next one.
    return max(0, freed) * (prices.written * min(1.0, turns) + per_turn * turns) > usd
