"""The time between one call and the next: three ways in which people and programs go on with a conversation."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

GAPS: Final = ("typing", "agent", "returning")
"""A person who types, an agent's loop, a user who leaves and comes back."""


class Habits(NamedTuple):
    """Median and sigma of lognormal distributions, in seconds, and how often somebody leaves."""

    tool: tuple[float, float]
    """A tool's answer."""
    typing: tuple[float, float]
    """A person's next message."""
    agent: tuple[float, float]
    """An agent's next step."""
    away: tuple[float, float]
    """The time that somebody stays away."""
    leaves: float
    """Of a returning user's requests, those that come after they were away."""


TUNED: Final = Habits((4.0, 0.9), (50.0, 1.1), (6.0, 1.6), (6 * 3_600.0, 1.3), 0.12)
"""Those that the constants of `compaction.cost` were chosen by. One message in twenty comes more than five minutes
after an answer; one step of an agent in 140, a build or a test run, takes as long."""
HELD_OUT: Final = Habits((2.0, 1.3), (30.0, 1.5), (15.0, 1.2), (2 * 3_600.0, 1.9), 0.2)
"""Those that nothing was chosen by: people who type faster and pause longer, an agent that hardly ever waits so."""


def gaps(kind: str, requests: Sequence[bool], name: str, habits: Habits = TUNED) -> list[float]:
    """Return the seconds before each call; `requests` tells which calls answer a person, not a tool."""
    rng = random.Random(f"{kind} {name}")  # noqa: S311 - drawn, and the same each time
    return [_gap(rng, kind, habits, is_request=is_request) for is_request in requests]


def _gap(rng: random.Random, kind: str, habits: Habits, *, is_request: bool) -> float:
    if kind == "agent":
        return _lognormal(rng, habits.agent)
    if not is_request:
        return _lognormal(rng, habits.tool)
    if kind == "returning" and rng.random() < habits.leaves:
        return _lognormal(rng, habits.away)
    return _lognormal(rng, habits.typing)


def _lognormal(rng: random.Random, about: tuple[float, float]) -> float:
    median, sigma = about
    return rng.lognormvariate(math.log(median), sigma)
