"""The overview's figures."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from api.console.views.bars import Bars, stacked
from compaction.steps.runs import RunState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from store.console.overview import Overview
    from store.operations.statistics import Day
    from store.tables import AnyRow

_STATES = (
    RunState.COMMITTED,
    RunState.DEGRADED,
    RunState.SKIPPED,
    RunState.FAILED,
    RunState.DEAD,
    RunState.RUNNING,
    RunState.QUEUED,
)


class Outcome(NamedTuple):
    """How many runs are in a state, and where its part of the bar is, in percent."""

    state: str
    runs: int
    start: float
    length: float


class Figures(NamedTuple):
    """What the overview shows."""

    totals: AnyRow
    runs: int
    outcomes: Sequence[Outcome]
    reasons: Sequence[AnyRow]
    days: Sequence[Day]
    """The newest first."""
    tokens_cut: int
    model_input_tokens: int
    model_output_tokens: int
    cost_usd: Decimal
    """Of the calls whose price is known."""
    model_calls: int
    unpriced_calls: int
    saved: Bars
    """Tokens, by day, the oldest first."""


def figures(overview: Overview) -> Figures:
    """Return the figures ready to be drawn."""
    counts = {row.state: row.runs for row in overview.by_state}
    runs = sum(counts.values())
    outcomes: list[Outcome] = []
    start = 0.0
    for state in _STATES:
        length = 100 * counts.get(state, 0) / max(1, runs)
        outcomes.append(Outcome(state, counts.get(state, 0), start, length))
        start += length
    days = overview.days
    return Figures(
        overview.totals,
        runs,
        outcomes,
        overview.reasons,
        days,
        tokens_cut=sum(day.tokens_cut for day in days),
        model_input_tokens=sum(day.model_input_tokens for day in days),
        model_output_tokens=sum(day.model_output_tokens for day in days),
        cost_usd=sum((day.cost_usd for day in days), Decimal(0)),
        model_calls=sum(day.model_calls for day in days),
        unpriced_calls=sum(day.unpriced_calls for day in days),
        saved=stacked([(day.day, [("saved", day.tokens_cut)]) for day in reversed(days)]),
    )
