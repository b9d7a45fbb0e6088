"""The time between one call and the next: three ways in which people and programs go on with a conversation."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

GAPS: Final = ("typing", "agent", "returning")
"""A person who types, an agent's loop, a user who leaves and comes back."""
_TOOL_SECONDS: Final = (4.0, 0.9)
_TYPING_SECONDS: Final = (50.0, 1.1)
_AGENT_SECONDS: Final = (6.0, 1.6)
_AWAY_SECONDS: Final = (6 * 3_600.0, 1.3)
"""Median and sigma of lognormal distributions: of a tool's answer, a person's next message, an agent's next step, and
the time that somebody stays away. One message in twenty comes more than five minutes after an answer; one step of an
agent in 140, a build or a test run, takes as long."""
_LEAVES: Final = 0.12
"""Of a returning user's requests, those that come after they were away."""


def gaps(kind: str, requests: Sequence[bool], name: str) -> list[float]:
    """Return the seconds before each call; `requests` tells which calls answer a person, not a tool."""
    rng = random.Random(f"{kind} {name}")  # noqa: S311 - made, and the same each time
    return [_gap(rng, kind, is_request=is_request) for is_request in requests]


def _gap(rng: random.Random, kind: str, *, is_request: bool) -> float:
    if kind == "agent":
        return _lognormal(rng, _AGENT_SECONDS)
    if not is_request:
        return _lognormal(rng, _TOOL_SECONDS)
    if kind == "returning" and rng.random() < _LEAVES:
        return _lognormal(rng, _AWAY_SECONDS)
    return _lognormal(rng, _TYPING_SECONDS)


def _lognormal(rng: random.Random, about: tuple[float, float]) -> float:
    median, sigma = about
    return rng.lognormvariate(math.log(median), sigma)
