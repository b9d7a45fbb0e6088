"""Strategies that other packages bring, found by their entry points."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from compaction.shorten.strategies import ExtraStrategy

STRATEGY_GROUP: Final = "palimpsest.strategies"
"""Entry points in this group name functions as compaction/shorten/strategies.py describes them."""


def names() -> list[str]:
    """Return the names of those that are installed next to this process."""
    return sorted(entry_points(group=STRATEGY_GROUP).names)


def load(name: str) -> ExtraStrategy | None:
    """Return the strategy of that name, None where it is not installed."""
    entry_point = next(iter(entry_points(group=STRATEGY_GROUP, name=name)), None)
    if entry_point is None:
        return None
    strategy: ExtraStrategy = entry_point.load()
    return strategy
