"""Pins that take effect at once: where a pinned message is not shown any more, its text comes back into the context."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import and_, select, update

from compaction.coverage import Coverage, find_span
from compaction.overrides import in_force
from compaction.pins.pinned import Pin, masked_pins, rules_in
from compaction.steps.catalogue import PIN
from compaction.steps.runs import RunTrigger, StepState
from compaction.steps.snapshot import settle
from store.conversations import pins, snapshots
from store.conversations.conversations import mark_due, restored_hold
from store.runs import requested
from store.runs.runs import StepRecord
from store.tables import conversations
from store.tables import snapshots as versions

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection

    from compaction.policy import Policy

_c, _s = conversations.c, versions.c


def repin(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, *, policy: Policy, request_id: UUID
) -> tuple[str, ...]:
    """Give the head the frame that the conversation's pins ask for; return the ids of pins that found no room in it.

    A run that has begun comes to nothing, unless the frame is as it was. While a tool loop with signed thinking is
    running the frame waits as pending for its end, as a snapshot does that waits for it already. What a restore holds
    stays held, and a check is due: the frame weighs something. Raises NoResultFound.
    """
    material = snapshots.load(connection, tenant_id, conversation_id, lock="write", dated=policy.recall_handles)
    waits = material.in_signed_loop or material.pending_version is not None
    if material.pending_version is not None:
        material = snapshots.load(
            connection,
            tenant_id,
            conversation_id,
            base_version=material.pending_version,
            dated=policy.recall_handles,
        )
    stage = material.stage(policy)
    pinned = stage.pinned(stage.view, policy)
    left_out = tuple(pin.id for pin in pinned.dropped)
    if rules_in(pinned.framed) == rules_in(material.snapshot.pins):
        return left_out
    if waits and requested.is_recovering(connection, conversation_id):
        # Its summary waits for the end of the loop as well, with that frame.
        return left_out
    before, after = stage.tokens, stage.estimate(pinned.view)
    count = sum(pin.source != "left_out" for pin in pinned.framed)
    version = material.last_version + 1
    overtaken = requested.overtake(connection, tenant_id, conversation_id)
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
            PIN.name,
            StepState.COMMITTED,
            tokens_before=before,
            tokens_after=after,
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
        parent_version=material.pending_version or material.head_version,
        run_id=run_id,
        step=PIN.name,
    )
    if waits:
        snapshots.let_wait(connection, conversation_id, version)
    else:
        hold = restored_hold(connection, conversation_id)
        snapshots.move_head(connection, conversation_id, version)
        if hold:
            connection.execute(update(conversations).where(conversations.c.id == conversation_id).values(hold))
        if overtaken is not None and overtaken.parent_version == material.head_version:
            # What an overflow left out is to be summarized still; what it left has the frame besides.
            of_run = in_force(overtaken.policy).policy
            more = max(0, after - before)
            requested.summarize_again(connection, overtaken, of_run, parent_version=version, more=more)
    mark_due(connection, conversation_id)
    return left_out


def keep_up(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, *, policy: Policy, request_id: UUID
) -> None:
    """Do so where a head was gone back to: its frame has the rules of then.

    Nothing is read of the messages where these are the rules of now.
    """
    if _may_be_behind(connection, tenant_id, conversation_id, policy):
        repin(connection, tenant_id, conversation_id, policy=policy, request_id=request_id)


def _may_be_behind(connection: Connection, tenant_id: UUID, conversation_id: UUID, policy: Policy) -> bool:
    """Tell whether the head's frame has a rule that is none now, or may lack one that is."""
    head = connection.execute(
        select(_s.pins, _s.coverage)
        .join(conversations, and_(_c.id == _s.conversation_id, _c.head_version == _s.version))
        .where(_c.tenant_id == tenant_id, _c.id == conversation_id)
    ).one_or_none()
    if head is None:
        return False
    framed = rules_in(msgspec.convert(pin, Pin) for pin in head.pins)
    texts = {text for _, text, _ in framed}
    coverage = msgspec.convert(head.coverage, Coverage)
    now = masked_pins(pins.in_force(connection, tenant_id, conversation_id), policy)
    spans = (find_span(coverage, rule.seq) for rule in now if rule.text not in texts)
    return not framed <= rules_in(now) or any(span is not None and span.fate != "kept" for span in spans)
