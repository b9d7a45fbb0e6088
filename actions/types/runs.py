"""Runs as answers show them, and which of them to begin over."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct

from actions.types.context_blocks import ContextBlockRef
from actions.types.core import Strict, money
from compaction.claims.claim import ClaimCounts
from compaction.steps.runs import RunKind, RunState, RunTrigger, StepState
from runtime import ids
from runtime.queues import Queue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from store.tables import AnyRow


class StepOut(Struct, kw_only=True):
    """One step of a run."""

    name: str
    state: StepState
    reason: str | None
    detail: str | None
    error: str | None
    attempt: int
    snapshot_version: int | None
    tokens_before: int
    tokens_after: int
    messages_before: int
    messages_after: int
    results_cut: int | None
    summarizer: str | None
    model: str | None
    prompt_version: str | None
    model_calls: int
    model_input_tokens: int | None
    model_output_tokens: int | None
    cost_usd: str | None
    duration_ms: int
    created_at: datetime


class RunOut(Struct, kw_only=True):
    """One execution of compaction."""

    id: str
    conversation_id: str
    kind: RunKind | None
    trigger: RunTrigger
    state: RunState
    queue: Queue
    strategy: str | None
    instructions: str | None
    context_block: ContextBlockRef | None
    reason: str | None
    error: str | None
    request_id: str | None
    policy: dict[str, Any]
    attempts: int
    worker: str | None
    snapshot_version: int | None
    tokens_before: int | None
    tokens_after: int | None
    messages_before: int | None
    messages_after: int | None
    model_input_tokens: int
    model_output_tokens: int
    cost_usd: str | None
    unsupported_lines: int | None
    """Lines of the summary that no original bears out; null where no step wrote one."""
    dropped_lines: int | None
    """Lines that were left out of it because nothing bore them out."""
    duration_ms: int | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    not_before: datetime | None
    steps: list[StepOut]


class RetryIn(Strict):
    """Which dead runs to begin over: all, or those that died of one reason; oldest first."""

    state: Literal["dead"]
    reason: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 100


class RetriedOut(Struct, kw_only=True):
    """The runs that are queued again; `has_more` tells that others could be."""

    run_ids: list[str]
    has_more: bool


def run_out(row: AnyRow, steps: Sequence[AnyRow]) -> RunOut:
    """Return a run as clients see it."""
    costs = [step.cost_usd for step in steps if step.cost_usd is not None]
    claims = claim_counts(steps)
    return RunOut(
        id=ids.external("run", row.id),
        conversation_id=ids.external("conv", row.conversation_id),
        kind=row.kind,
        trigger=row.trigger,
        state=row.state,
        queue=row.queue,
        strategy=row.strategy,
        instructions=row.instructions,
        context_block=None
        if row.block_seq is None
        else ContextBlockRef(row.block_seq, row.block_position, row.block_source),
        reason=row.reason,
        error=row.error,
        request_id=ids.external("req", row.request_id) if row.request_id else None,
        policy=row.policy,
        attempts=row.attempts,
        worker=row.worker,
        snapshot_version=row.snapshot_version,
        tokens_before=row.tokens_before,
        tokens_after=row.tokens_after,
        messages_before=row.messages_before,
        messages_after=row.messages_after,
        model_input_tokens=sum(step.model_input_tokens or 0 for step in steps),
        model_output_tokens=sum(step.model_output_tokens or 0 for step in steps),
        cost_usd=money(sum(costs)) if costs else None,
        unsupported_lines=claims.unsupported if claims else None,
        dropped_lines=claims.dropped if claims else None,
        duration_ms=round((row.finished_at - row.started_at).total_seconds() * 1000)
        if row.finished_at and row.started_at
        else None,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        not_before=row.not_before,
        steps=[step_out(step) for step in steps],
    )


def claim_counts(steps: Sequence[AnyRow]) -> ClaimCounts | None:
    """Return how the lines of a run's summary came to their sources, None where no step wrote one."""
    details = [step.detail for step in steps if step.state == "committed" and step.detail]
    return next((counts for detail in reversed(details) if (counts := ClaimCounts.parse(detail))), None)


def step_out(row: AnyRow) -> StepOut:
    """Return a step as clients see it."""
    named = {name: getattr(row, name) for name in StepOut.__struct_fields__ if name != "cost_usd"}
    return StepOut(**named, cost_usd=None if row.cost_usd is None else money(row.cost_usd))
