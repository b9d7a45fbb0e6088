"""Whether a snapshot that is ready becomes the head now, or waits until that is cheap: a question of price."""

from __future__ import annotations

from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from compaction.cost.calls import CallPrices


PATIENCE: Final = 0.25
"""Of what a swap costs, the share that carrying the excess has to have cost since the last one before a warm prefix is
broken. Where growth is even, the cheapest interval is where both are equal, as in any economic order quantity; below it
the bill hardly changes, and a swap that comes too late costs more than one too early."""
REGRET: Final = 1.5
"""Times what a swap costs: where carrying has cost as much, no pause that may come is waited for any longer."""


class Ground(StrEnum):
    """What a decision rests on."""

    LIMIT = "limit"
    """The context may not grow any further."""
    UNPRICED = "unpriced"
    """Nobody knows what a call costs."""
    BROKEN = "broken"
    """What was cached will not be read again anyway."""
    COLD = "cold"
    """The cache has gone since the last call."""
    PAYS = "pays"
    """What it saves, before the next pause and since the last swap, is worth writing the prefix anew."""
    WARM = "warm"
    """The cache is of more use than the snapshot would be: it waits."""


class Ready(NamedTuple):
    """A snapshot that is ready, and the conversation that it may become the head of; in tokens and seconds.

    `before` and `after` are those of the next call without and with it, `shared` those that both begin with. `limit`
    are the tokens from which nothing waits. `gap` is the time since the last call.
    """

    before: int
    after: int
    shared: int
    limit: int
    gap: float = 0.0
    is_broken: bool = False
    """Whether the head has moved since the last call."""
    since: int = 0
    """Calls since the last snapshot became the head, or since the beginning."""


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

    Whatever prices, clocks and usage say, it does at the limit, and where nothing is known of prices. Below it, with a
    warm cache, it does where writing the prefix anew costs less than what is saved before the next pause, and not much
    more than carrying the excess has cost since the last time: what is not worth that yet grows until it is.
    """
    if ready.before >= ready.limit:
        return Decision(swaps=True, ground=Ground.LIMIT)
    if prices is None or not prices.are_known:
        return Decision(swaps=True, ground=Ground.UNPRICED)
    if ready.is_broken:
        return Decision(swaps=True, ground=Ground.BROKEN)
    if prices.is_cold(ready.gap):
        return Decision(swaps=True, ground=Ground.COLD)
    turns = max(0.0, expected_turns) if isfinite(expected_turns) else 0.0
    saved = max(0, ready.before - ready.after) * prices.carrying * turns
    cost = max(0, ready.after - max(0, ready.shared)) * prices.rewriting
    carried = max(0, ready.before - ready.after) * prices.carrying * max(0, ready.since) / 2
    pays = (saved > cost and carried >= PATIENCE * cost) or (saved > 0 and carried >= REGRET * cost)
    ground = Ground.PAYS if pays else Ground.WARM
    return Decision(ground is Ground.PAYS, ground, saved, cost, turns)
