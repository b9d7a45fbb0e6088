"""How many more turns to expect of a conversation, from those of its tenant and from how long it has gone on."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PRIOR_WEIGHT: Final = 5
"""Conversations that the prior counts as: with as many others at the same age it has half the say."""
HORIZON: Final = 400
"""Turns that are looked ahead; what is beyond is too uncertain to reckon with."""


class Life(NamedTuple):
    """A conversation's turns so far, and whether it has ended, as far as anybody can tell."""

    turns: int
    has_ended: bool


class SurvivalCurve:
    """The product-limit estimate (Kaplan and Meier) of whether a conversation goes on, with a prior where few did.

    The prior is that a conversation lasts as long again as it has lasted: its hazard after n turns is 1 / (n + 1).
    """

    def __init__(self, lives: Iterable[Life] = ()) -> None:
        known = [Life(max(0, life.turns), life.has_ended) for life in lives]
        self._lengths: Sequence[int] = sorted(life.turns for life in known)
        self._ends: Sequence[int] = sorted(life.turns for life in known if life.has_ended)

    def hazard(self, turns: int) -> float:
        """Return how likely a conversation of `turns` turns is to have no other."""
        at_risk = len(self._lengths) - bisect_left(self._lengths, turns)
        ends = bisect_left(self._ends, turns + 1) - bisect_left(self._ends, turns)
        return (ends + PRIOR_WEIGHT / (turns + 1)) / (at_risk + PRIOR_WEIGHT)

    def expected_turns(self, turns: int, pauses: float = 0.0) -> float:
        """Return how many more turns are expected before the end, or before a pause: `pauses` of all gaps are one."""
        expected, alive = 0.0, 1.0
        for further in range(HORIZON):
            alive *= (1 - self.hazard(turns + further)) * (1 - min(1.0, max(0.0, pauses)))
            expected += alive
        return expected


def share_of_pauses(gaps: Sequence[float], lifetime: float, prior: float = 0.05) -> float:
    """Return which share of gaps between turns, in seconds, outlives a cache; of few gaps `prior` has a say."""
    known = [gap for gap in gaps if gap >= 0]
    pauses = sum(gap > lifetime for gap in known)
    return (pauses + PRIOR_WEIGHT * prior) / (len(known) + PRIOR_WEIGHT)
