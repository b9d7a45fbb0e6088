"""Pins that take effect at once: where a pinned message is not shown any more, its text comes back into the context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import update

from compaction.steps.ladder import Step
from compaction.steps.runs import RunTrigger, StepState
from compaction.steps.snapshot import settle
from store.conversations import snapshots
from store.conversations.conversations import mark_due, restored_hold
from store.runs import requested
from store.runs.runs import StepRecord
from store.tables import conversations

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection

    from compaction.policy import Policy


def repin(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, *, policy: Policy, request_id: UUID
) -> tuple[str, ...]:
    """Give the head the frame that the conversation's pins ask for; return the ids of pins that found no room in it.

    A run that has begun comes to nothing, unless the frame is as it was. While a tool loop with signed thinking is
    running, or a snapshot waits for its end, nothing is touched: the next compaction frames them. What a restore holds
    stays held, and a check is due: the frame weighs something. Raises NoResultFound.
    """
    material = snapshots.load(connection, tenant_id, conversation_id, lock="write", dated=policy.recall_handles)
    stage = material.stage(policy)
    pinned = stage.pinned(stage.view, policy)
    left_out = tuple(pin.id for pin in pinned.dropped)
    waits = material.in_signed_loop or material.pending_version is not None
    if waits or pinned.framed == material.snapshot.pins:
        return left_out
    count = sum(pin.source != "left_out" for pin in pinned.framed)
    version = material.last_version + 1
    requested.overtake(connection, tenant_id, conversation_id)
    run_id = requested.record(
        connection,
        tenant_id,
        conversation_id,
        trigger=RunTrigger.PIN,
        policy=policy,
        request_id=request_id,
        parent_version=material.head_version,
        snapshot_version=version,
        step=StepRecord(
            Step.PIN,
            StepState.COMMITTED,
            tokens_before=stage.tokens,
            tokens_after=stage.estimate(pinned.view),
            messages_before=len(stage.view),
            messages_after=len(pinned.view),
            duration_ms=0,
            detail=f"{count} pinned text(s) stand in the frame, {len(left_out)} found no room",
            snapshot_version=version,
        ),
    )
    new = settle(stage.working, pinned.view, run_id=str(run_id), pins=pinned.framed)
    snapshots.insert_new(
        connection,
        tenant_id,
        conversation_id,
        new,
        version=version,
        parent_version=material.head_version,
        run_id=run_id,
        step=Step.PIN,
    )
    hold = restored_hold(connection, conversation_id)
    snapshots.move_head(connection, conversation_id, version)
    if hold:
        connection.execute(update(conversations).where(conversations.c.id == conversation_id).values(hold))
    mark_due(connection, conversation_id)
    return left_out
