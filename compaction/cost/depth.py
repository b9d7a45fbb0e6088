"""How deep a cut of tool results goes: from which result on it pays to write anew what comes after it.

Once a result is cut, all behind it is written anew, so that cutting these as well only costs less. What is in question
is the first one: small results with much behind them are cheaper carried on than cut.
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
"""Times the turns expected for which results that stay whole have to be cheaper carried than cut: conversations go on
for longer than expected, and what was passed over is cut later only by writing anew all that has come since."""


class Depth(NamedTuple):
    """A cut of the results from one on; in tokens of the next call."""

    start: int
    """Index of the first message that is cut."""
    after: int
    """That are left."""
    shared: int
    """That the call begins with as the one before it did."""


def depths(stage: Stage, policy: Policy) -> list[Depth]:
    """Return every depth to which older tool results can be cut, the deepest first; none where nothing is to be cut."""
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
    """The depth that pays, and what it is worth against the deepest."""

    depth: Depth
    spares_usd: float = 0.0
    """Of writing anew what comes behind the results that stay whole."""
    costs_usd: float = 0.0
    """Of carrying these over the turns that are expected."""


def choose(
    cuts: Sequence[Depth], before: int, bounds: Bounds, prices: CallPrices | None, expected_turns: float
) -> Choice:
    """Return the depth at which a cut of a warm prefix costs least over the turns expected before a pause.

    It answers every threshold that the deepest answers, with as much room to the next one where that is a step; where
    nobody knows what a call costs it is the deepest. `cuts` are not empty, the deepest first.
    """
    deepest = cuts[0]
    if prices is None or not prices.are_known or not isfinite(expected_turns):
        return Choice(deepest)
    turns = max(0.0, expected_turns)

    def usd(each: Depth) -> float:
        return max(0, each.after - each.shared) * prices.rewriting + each.after * prices.carrying * turns * HEDGE

    allowed = [each for each in cuts if each is deepest or _answers_as_much(each, deepest, before, bounds)]
    depth = min(allowed, key=usd)
    spared = max(0, deepest.after - deepest.shared) - max(0, depth.after - depth.shared)
    carried = depth.after - deepest.after
    return Choice(depth, spared * prices.rewriting, carried * prices.carrying * turns)


def _answers_as_much(each: Depth, deepest: Depth, before: int, bounds: Bounds) -> bool:
    """Tell whether a cut frees a whole step and stays under every bound that the deepest comes under."""
    if before - each.after < min(bounds.large, before - deepest.after):
        return False
    limits = [bounds.hard, bounds.hard - bounds.large]
    if bounds.budget > 0:
        limits += [bounds.budget, bounds.budget - bounds.large]
    return all(each.after <= limit for limit in limits if deepest.after <= limit)
