"""A run as its path of states, with the time spent in each."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple

from actions.types.runs import claim_counts
from compaction.steps.runs import ACTIVE, RunState, StepState
from store.operations.statistics import tokens_cut

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from decimal import Decimal

    from compaction.claims.claim import ClaimCounts
    from store.tables import AnyRow

Kind = Literal["wait", "model", "steps", "rest"]
_LABELS: dict[Kind, str] = {
    "wait": "Waiting in a queue",
    "model": "Steps that ask a model",
    "steps": "Steps that ask none",
    "rest": "Between steps: commits, hand-over, retries",
}


class State(NamedTuple):
    """A state of the path: when it began, and for how many seconds it lasted (None = it still does, or is the end)."""

    name: str
    detail: str
    at: datetime
    seconds: float | None


class Time(NamedTuple):
    """Seconds of one kind: where they begin in the bar and how long they are, in percent of it."""

    kind: Kind
    label: str
    seconds: float
    start: float
    length: float


class Failure(NamedTuple):
    """What failed last."""

    where: str
    reason: str | None
    error: str | None


class Path(NamedTuple):
    """How a run went: its states, its time by kind, what it came to, and what failed last."""

    states: Sequence[State]
    times: Sequence[Time]
    seconds: float
    is_active: bool
    cost_usd: Decimal | None
    model_calls: int
    model_input_tokens: int
    model_output_tokens: int
    tokens_cut: int
    failure: Failure | None
    claims: ClaimCounts | None
    """How the lines of its summary came to their sources."""


def run_path(run: AnyRow, steps: Sequence[AnyRow], now: datetime) -> Path:
    """Return the path of a run until `now`."""
    is_active = run.state in ACTIVE
    end = run.finished_at or now
    # Queued again after a fault: it waited a second time, from the last time it was queued.
    again = run.queued_at if run.started_at and run.queued_at > run.started_at else None
    resumed = _first_after(steps, again) if again else None
    spans: list[tuple[str, str, datetime, datetime]] = []
    if again is None and run.queued_at > run.created_at:
        # Handed over: it began with the worker that took it from the other queue.
        spans.append(("running", "checks", run.created_at, run.queued_at))
        spans.append(("queued", run.queue, run.queued_at, run.started_at or end))
    else:
        spans.append(("queued", run.queue, run.created_at, run.started_at or end))
    if run.started_at:
        spans.append(("running", run.queue, run.started_at, again or end))
    if again:
        back = end if run.state == RunState.QUEUED else min(resumed or again, end)
        spans.append(("queued", run.queue, again, back))
        if run.state != RunState.QUEUED:
            spans.append(("running", run.queue, back, end))
    states = [State(name, detail, at, _seconds(until - at)) for name, detail, at, until in spans]
    if not is_active:
        states.append(State(run.state, run.reason or "", end, None))
    return Path(
        states,
        _times(states, steps, _seconds(end - run.created_at)),
        _seconds(end - run.created_at),
        is_active,
        _cost(steps),
        sum(step.model_calls for step in steps),
        sum(step.model_input_tokens or 0 for step in steps),
        sum(step.model_output_tokens or 0 for step in steps),
        sum(map(tokens_cut, steps)),
        _failure(run, steps),
        claim_counts(steps),
    )


def _cost(steps: Sequence[AnyRow]) -> Decimal | None:
    costs: list[Decimal] = [step.cost_usd for step in steps if step.cost_usd is not None]
    return sum(costs[1:], start=costs[0]) if costs else None


def _times(states: Sequence[State], steps: Sequence[AnyRow], whole: float) -> list[Time]:
    waited = sum(state.seconds or 0 for state in states if state.name == "queued")
    model = sum(step.duration_ms for step in steps if step.model_calls) / 1000
    others = sum(step.duration_ms for step in steps if not step.model_calls) / 1000
    spent: dict[Kind, float] = {"wait": waited, "model": model, "steps": others}
    spent["rest"] = max(0.0, whole - sum(spent.values()))
    all_of_it = sum(spent.values()) or 1.0
    times: list[Time] = []
    start = 0.0
    for kind, seconds in spent.items():
        length = 100 * seconds / all_of_it
        times.append(Time(kind, _LABELS[kind], seconds, start, length))
        start += length
    return times


def _first_after(steps: Sequence[AnyRow], at: datetime) -> datetime | None:
    """Return when the first step after a moment began."""
    began = (step.created_at - timedelta(milliseconds=step.duration_ms) for step in steps if step.created_at > at)
    return max(at, min(began, default=at))


def _failure(run: AnyRow, steps: Sequence[AnyRow]) -> Failure | None:
    failed = [step for step in steps if step.state == StepState.FAILED]
    if failed:
        last = failed[-1]
        return Failure(
            f"step {last.step_no}, {last.name}, attempt {last.attempt}", last.reason, last.error or last.detail
        )
    return Failure(f"attempt {run.attempts}", run.reason, run.error) if run.error else None


def _seconds(span: timedelta) -> float:
    return max(0.0, span.total_seconds())
