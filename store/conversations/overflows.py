"""Overflows: a smaller context at once, in the transaction of the request that reports one."""

from __future__ import annotations

import math
import time
from operator import call
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from sqlalchemy import Connection, func, text, update

from compaction.steps.catalogue import OVERFLOW
from compaction.steps.overflow import MOST, shrink
from compaction.steps.refusal_wordings import Unit
from compaction.steps.runs import RunTrigger, StepState
from compaction.steps.snapshot import settle
from store.conversations import snapshots
from store.runs import requested
from store.runs.runs import StepRecord
from store.tables import conversations

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from compaction.policy import Policy
    from compaction.steps.overflow import Shrunk
    from compaction.steps.refusals import Refusal
    from compaction.steps.stage import Stage
    from store.tables import AnyRow

_c = conversations.c


Outcome = Literal["compacted", "shrunk_since", "exhausted", "cannot_shrink", "not_the_history", "no_such_version"]


class Overflowed(NamedTuple):
    """What became of an overflow.

    `shrunk_since`: the refused call was made with an older version than the head, and nothing is done.
    `not_the_history`: the refusal is about something else, and nothing is done either. `tokens` are
    those of the history as it is served, `fixed_tokens` those of system prompt, tools and carried context; both are
    estimates. `summary_run_id` is the queued run that summarizes what was left out.
    """

    outcome: Outcome
    tokens: int = 0
    fixed_tokens: int = 0
    run_id: UUID | None = None
    summary_run_id: UUID | None = None
    version: int | None = None
    """Of the snapshot that was made."""


class Previewed(NamedTuple):
    """What an overflow would do, and the head that it would leave; None if it would leave the one that there is."""

    done: Overflowed
    head: AnyRow | None


_HEAD: Final = text(
    """
    select h.version, h.covers_through, h.head, h.head_seqs, h.head_tokens, h.covered_tokens,
           c.rules::text as rules, coalesce(c.strip_thinking_through, -1) as strip_thinking_through,
           coalesce(c.broken_through, -1) as broken_through
    from conversations as c, gateway_head(c.tenant_id, c.id, c.head_version) as h
    where c.id = :conversation
    """
)


def overflow(
    connection: Connection,
    tenant_id: UUID,
    conversation_id: UUID,
    *,
    policy: Policy,
    request_id: UUID,
    snapshot_version: int | None,
    refusal: Refusal | None,
    summarize: bool,
    tries: int = 0,
    is_fitted: bool = True,
    run_compute: Callable[[Callable[[], tuple[Stage, Shrunk]]], tuple[Stage, Shrunk]] = call,
) -> Overflowed:
    """Make the context of a conversation strictly smaller.

    `run_compute` runs what takes time and needs no database. A pending snapshot, any run that has begun and the holds
    of a restore are dropped. With `summarize` a run is queued that puts a summary into the place of what is left out.
    Raises NoResultFound.
    """
    if refusal is not None and not refusal.is_of_history:
        return Overflowed("not_the_history")
    started = time.monotonic()
    material = snapshots.load(connection, tenant_id, conversation_id, lock="write", dated=policy.recall_handles)
    if snapshot_version is not None and snapshot_version != material.head_version:
        if snapshot_version > material.last_version:
            return Overflowed("no_such_version")
        if snapshot_version < material.head_version:
            return Overflowed("shrunk_since")

    def compute() -> tuple[Stage, Shrunk]:
        stage = material.stage(policy)
        return stage, shrink(
            stage,
            policy,
            factor=material.factor,
            overflows=material.overflows,
            refusal=refusal,
            tries=tries,
            is_fitted=is_fitted,
        )

    stage, shrunk = run_compute(compute)
    overflowed = Overflowed("compacted", shrunk.served, math.ceil(material.fixed_tokens * material.factor))
    if material.overflows >= MOST:
        return overflowed._replace(outcome="exhausted")
    if not shrunk.is_smaller:
        return overflowed._replace(outcome="cannot_shrink")
    version = material.last_version + 1
    left = round(shrunk.estimated * material.token_ratio)
    step = StepRecord(
        OVERFLOW.name,
        StepState.COMMITTED,
        tokens_before=stage.tokens,
        tokens_after=left,
        messages_before=len(stage.view),
        messages_after=len(shrunk.view),
        duration_ms=round((time.monotonic() - started) * 1000),
        detail=_detail(shrunk, refusal),
        snapshot_version=version,
    )
    overtaken = requested.overtake(connection, tenant_id, conversation_id)
    run_id = requested.record(
        connection,
        tenant_id,
        conversation_id,
        trigger=RunTrigger.OVERFLOW,
        policy=policy,
        request_id=request_id,
        parent_version=material.head_version,
        snapshot_version=version,
        step=step,
    )
    new = settle(stage.working, shrunk.view, run_id=str(run_id), truncated=shrunk.truncated, pins=shrunk.pins)
    snapshots.insert_new(
        connection,
        tenant_id,
        conversation_id,
        new,
        version=version,
        parent_version=material.head_version,
        run_id=run_id,
        step=OVERFLOW.name,
    )
    snapshots.move_head(connection, conversation_id, version)
    connection.execute(
        update(conversations)
        .where(_c.id == conversation_id)
        .values(
            overflows=_c.overflows + 1,
            tool_results_hold=0,
            summary_hold=0,
            trim_hold=0,
            results_cut_through=-1,
            check_due_at=func.coalesce(_c.check_due_at, func.now()),
        )
    )
    queued = None
    if summarize:
        base = material.head_version
        if overtaken is not None and overtaken.base_version is not None and overtaken.parent_version == base:
            # What the overflow before left out has not been summarized yet.
            base = overtaken.base_version
        queued = requested.summarize_overflow(
            connection,
            tenant_id,
            conversation_id,
            policy=policy,
            request_id=request_id,
            base_version=base,
            parent_version=version,
            target_tokens=left,
        )
    return overflowed._replace(tokens=shrunk.tokens, run_id=run_id, summary_run_id=queued, version=version)


def preview(
    connection: Connection, conversation_id: UUID, shrink_now: Callable[[], Overflowed | None]
) -> Previewed | None:
    """Return what an overflow would do and the head that it would leave, None if `shrink_now` finds no conversation.

    `shrink_now` makes the overflow in this connection's transaction; it is rolled back to where it began.
    """
    savepoint = connection.begin_nested()
    try:
        done = shrink_now()
        if done is None:
            return None
        is_made = done.outcome == "compacted"
        head = connection.execute(_HEAD, {"conversation": conversation_id}).one() if is_made else None
        return Previewed(done, head)
    finally:
        savepoint.rollback()


def _detail(shrunk: Shrunk, refusal: Refusal | None) -> str:
    return (
        f"The model refused the prompt ({_numbers(refusal)}); dropped {shrunk.dropped:,} messages, "
        f"cut {len(shrunk.truncated):,}; {shrunk.served:,} tokens served before, {shrunk.tokens:,} now"
    )


def _numbers(refusal: Refusal | None) -> str:
    """Return the numbers of a refusal in words."""
    if refusal is None or (refusal.limit is None and refusal.unit is Unit.TOKENS):
        return "no numbers given"
    if refusal.limit is None:
        return f"too many {refusal.unit}"
    if refusal.amount is None:
        return f"{refusal.limit:,} at most in {refusal.unit}"
    return f"{refusal.amount:,} {refusal.unit}, {refusal.limit:,} at most"
