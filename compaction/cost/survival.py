"""Expected further turns of a conversation, from its tenant's conversations and its own age."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PRIOR_WEIGHT: Final = 5
"""Weight of the prior in conversations. With as many real ones of the same age, it counts half."""
HORIZON: Final = 400
"""Horizon in turns. Later ones are too uncertain to count."""


class Life(NamedTuple):
    """A conversation's turns so far, and whether it has ended, as far as known."""

    turns: int
    has_ended: bool


class SurvivalCurve:
    """Product-limit estimate (Kaplan and Meier) of a conversation's continuation, with a prior.

    The prior is that a conversation lasts as long again as it has lasted: its hazard after n turns is 1 / (n + 1).
    """

    def __init__(self, lives: Iterable[Life] = ()) -> None:
        known = [Life(max(0, life.turns), life.has_ended) for life in lives]
        self._lengths: Sequence[int] = sorted(life.turns for life in known)
        self._ends: Sequence[int] = sorted(life.turns for life in known if life.has_ended)

    def hazard(self, turns: int) -> float:
        """Return the probability that a conversation of `turns` turns has no further one."""
        at_risk = len(self._lengths) - bisect_left(self._lengths, turns)
        ends = bisect_left(self._ends, turns + 1) - bisect_left(self._ends, turns)
        return (ends + PRIOR_WEIGHT / (turns + 1)) / (at_risk + PRIOR_WEIGHT)

    def expected_turns(self, turns: int, pauses: float = 0.0) -> float:
        """Return the expected turns before the end or before a pause. `pauses` is the share of gaps that are pauses."""
        expected, alive = 0.0, 1.0
        for further in range(HORIZON):
            alive *= (1 - self.hazard(turns + further)) * (1 - min(1.0, max(0.0, pauses)))
            expected += alive
        return expected


def share_of_pauses(gaps: Sequence[float], lifetime: float, prior: float = 0.05) -> float:
    """Return the share of gaps between turns, in seconds, that exceed a cache's lifetime, weighted with `prior`."""
    known = [gap for gap in gaps if gap >= 0]
    pauses = sum(gap > lifetime for gap in known)
    return (pauses + PRIOR_WEIGHT * prior) / (len(known) + PRIOR_WEIGHT)
