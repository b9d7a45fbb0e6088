"""Depth of a cut of tool results: the first result to cut, given the cost of rewriting the prompt after it.

After the first cut result, everything is written to the cache again, so cutting later results only saves. Small results
before much other text are cheaper to resend than to cut.
"""

from __future__ import annotations

from itertools import accumulate
from math import isfinite
from typing import TYPE_CHECKING, Final, NamedTuple

from compaction.shorten.tool_results import cut_tool_results

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.cost.calls import CallPrices
    from compaction.cost.swap import Bounds
    from compaction.policy import Policy
    from compaction.steps.stage import Stage

HEDGE: Final = 2.0
"""Factor on the expected turns for which resending whole results must be cheaper than cutting them. Conversations may
last longer than expected, and a later cut has to rewrite everything since."""


class Depth(NamedTuple):
    """A cut of all results from one message on, in tokens of the next call."""

    start: int
    """Index of the first message with a cut result."""
    after: int
    """Tokens of the context after the cut."""
    shared: int
    """Tokens at the beginning that equal the previous call's."""


def cut_depths(stage: Stage, policy: Policy) -> list[Depth]:
    """Return all possible cuts of older tool results, the deepest first. Empty if there is nothing to cut."""
    cut = cut_tool_results(
        stage.view,
        policy.tool_result_retention_chars,
        stage.working.handles,
        reads_html=policy.html_results == "text",
        whole=stage.working.whole,
    )
    freed = [stage.view[index].tokens - cut.view[index].tokens for index in cut.indices]
    until = [0, *accumulate(message.tokens for message in stage.view)]
    left = sum(freed)
    found: list[Depth] = []
    for index, less in zip(cut.indices, freed, strict=True):
        after = stage.load.input_tokens - round(left * stage.token_ratio)
        found.append(Depth(index, max(0, after), stage.fixed_input + round(until[index] * stage.token_ratio)))
        left -= less
    return found


class Choice(NamedTuple):
    """The cheapest depth, with its savings against the deepest."""

    depth: Depth
    spares_usd: float = 0.0
    """USD saved by not rewriting the text after whole results."""
    costs_usd: float = 0.0
    """USD for resending these results over the expected turns."""


def choose_depth(
    cuts: Sequence[Depth], before: int, bounds: Bounds, prices: CallPrices | None, expected_turns: float
) -> Choice:
    """Return the depth of the cheapest cut of a warm prefix over the turns expected before a pause.

    The cut meets every threshold that the deepest meets, with as much room to the next one if that is a step. Without
    prices the deepest is chosen. `cuts` are not empty, the deepest first.
    """
    deepest = cuts[0]
    if prices is None or not prices.is_usable or not isfinite(expected_turns):
        return Choice(deepest)
    turns = max(0.0, expected_turns)

    def usd(each: Depth) -> float:
        return (
            max(0, each.after - each.shared) * prices.rewrite_premium + each.after * prices.resend_price * turns * HEDGE
        )

    allowed = [each for each in cuts if each is deepest or _meets_same_thresholds(each, deepest, before, bounds)]
    depth = min(allowed, key=usd)
    spared = max(0, deepest.after - deepest.shared) - max(0, depth.after - depth.shared)
    carried = depth.after - deepest.after
    return Choice(depth, spared * prices.rewrite_premium, carried * prices.resend_price * turns)


def _meets_same_thresholds(each: Depth, deepest: Depth, before: int, bounds: Bounds) -> bool:
    """Return whether a cut frees a whole step and meets every bound that the deepest meets."""
    if before - each.after < min(bounds.large, before - deepest.after):
        return False
    limits = [bounds.hard, bounds.hard - bounds.large]
    if bounds.budget > 0:
        limits += [bounds.budget, bounds.budget - bounds.large]
    return all(each.after <= limit for limit in limits if deepest.after <= limit)
