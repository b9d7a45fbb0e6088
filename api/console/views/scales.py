"""Scales of plots: where the lines of a grid are, at round numbers."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

_NICE: Final = (1, 2, 2.5, 5, 10)


class Tick(NamedTuple):
    """A line of the grid at `at`."""

    at: float
    value: int


def nice(value: float) -> int:
    """Return a round number that is not below `value`."""
    power: int = 10 ** math.floor(math.log10(max(value, 1)))
    return max(1, math.ceil(next(factor * power for factor in _NICE if factor * power >= value)))
