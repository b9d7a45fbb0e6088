"""Runs that a request carries out itself, and those that it queues for the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from sqlalchemy import Connection, func, insert, select, update

from compaction.overrides import in_force
from compaction.steps.runs import ACTIVE, RunKind, RunReason, RunState, RunTrigger
from runtime import ids
from runtime.queues import Queue
from store.conversations.conversations import lock, mark_due
from store.runs import ended
from store.tables import conversations, run_steps, runs
from store.tenants import webhooks

if TYPE_CHECKING:
    from uuid import UUID

    from compaction.policy import Policy
    from store.runs.runs import Lease, StepRecord
    from store.tables import AnyRow

_c, _r = conversations.c, runs.c


class ManualRun(NamedTuple):
    """What is asked of a run by hand."""

    strategy: str
    instructions: str | None
    policy: Policy


def record(
    connection: Connection,
    tenant_id: UUID,
    conversation_id: UUID,
    *,
    kind: RunKind = RunKind.REQUEST,
    trigger: RunTrigger,
    policy: Policy,
    request_id: UUID | None,
    parent_version: int | None,
    snapshot_version: int | None,
    reason: str | None = None,
    step: StepRecord | None = None,
    state: RunState = RunState.COMMITTED,
    error: str | None = None,
) -> UUID:
    """Write down a run, and its only step, that has ended already, as those of a request; return its id."""
    identifier = ids.new_id()
    sizes: dict[str, Any] = {}
    if step is not None:
        named = ("tokens_before", "tokens_after", "messages_before", "messages_after")
        sizes = {name: getattr(step, name) for name in named}
    connection.execute(
        insert(runs).values(
            id=identifier,
            tenant_id=tenant_id,
            conversation_id=conversation_id,
            kind=kind,
            trigger=trigger,
            state=state,
            queue=Queue.CHECKS,
            reason=reason,
            error=error,
            policy=msgspec.to_builtins(policy),
            request_id=request_id,
            attempts=1,
            parent_version=parent_version,
            snapshot_version=snapshot_version,
            started_at=func.now(),
            finished_at=func.now(),
            **sizes,
        )
    )
    if step is not None:
        connection.execute(
            insert(run_steps).values(tenant_id=tenant_id, run_id=identifier, step_no=1, attempt=1, **step._asdict())
        )
        webhooks.announce(connection, tenant_id, identifier)
    ended.note(state, reason, step)
    return identifier


def request(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, wanted: ManualRun, *, queue: Queue, request_id: UUID
) -> tuple[UUID, bool]:
    """Queue a run by hand; return its id and True.

    If the conversation has an active run, return that one's id, and whether it is one by hand for the same.
    """
    lock(connection, conversation_id)
    active = _active(connection, conversation_id)
    if active is not None:
        if active.trigger != RunTrigger.MANUAL:
            return active.id, False
        return active.id, ManualRun(active.strategy, active.instructions, in_force(active.policy).policy) == wanted
    identifier = _queue(
        connection,
        tenant_id,
        conversation_id,
        kind=RunKind.MANUAL,
        trigger=RunTrigger.MANUAL,
        queue=queue,
        policy=msgspec.to_builtins(wanted.policy),
        request_id=request_id,
        strategy=wanted.strategy,
        instructions=wanted.instructions,
    )
    return identifier, True


def summarize_overflow(
    connection: Connection,
    tenant_id: UUID,
    conversation_id: UUID,
    *,
    policy: Policy,
    request_id: UUID | None,
    base_version: int,
    parent_version: int,
    target_tokens: int,
    trigger: RunTrigger = RunTrigger.OVERFLOW,
    instructions: str | None = None,
) -> UUID:
    """Queue the run that puts a summary into the place of what an overflow left out; return its id.

    Also, with another trigger, of what was left out or extracted because no model might be asked.
    """
    return _queue(
        connection,
        tenant_id,
        conversation_id,
        kind=RunKind.RECOVERY,
        trigger=trigger,
        instructions=instructions,
        queue=Queue.SUMMARIES,
        policy=msgspec.to_builtins(policy),
        request_id=request_id,
        base_version=base_version,
        parent_version=parent_version,
        target_tokens=target_tokens,
    )


def summarize_again(
    connection: Connection, lost: AnyRow | Lease, policy: Policy, *, parent_version: int, more: int = 0
) -> None:
    """Queue a run once more that was lost on the way and summarizes what was left out, if its head is there still.

    The result follows `parent_version`, which has `more` tokens than the head that the run was for.
    """
    head, pending = _c.head_version, _c.pending_version
    row = connection.execute(
        select(head, pending).where(_c.tenant_id == lost.tenant_id, _c.id == lost.conversation_id).with_for_update()
    ).one_or_none()
    if lost.base_version is None or row is None or tuple(row) != (parent_version, None):
        return
    summarize_overflow(
        connection,
        lost.tenant_id,
        lost.conversation_id,
        policy=policy,
        request_id=lost.request_id,
        base_version=lost.base_version,
        parent_version=parent_version,
        target_tokens=(lost.target_tokens or 0) + more,
        trigger=RunTrigger(lost.trigger),
        instructions=lost.instructions,
    )


def is_recovering(connection: Connection, conversation_id: UUID) -> bool:
    """Tell whether a run is active that summarizes what was left out. The conversation's row has to be locked."""
    active = _active(connection, conversation_id)
    return active is not None and active.base_version is not None


def summarize_block(
    connection: Connection,
    tenant_id: UUID,
    conversation_id: UUID,
    block_id: UUID,
    *,
    policy: Policy,
    request_id: UUID | None,
) -> UUID:
    """Queue another run that summarizes a context block; return its id."""
    return _queue(
        connection,
        tenant_id,
        conversation_id,
        kind=RunKind.CONTEXT_BLOCK,
        trigger=RunTrigger.CONTEXT_BLOCK,
        queue=Queue.SUMMARIES,
        policy=msgspec.to_builtins(policy),
        request_id=request_id,
        block_id=block_id,
    )


def overtake(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> AnyRow | None:
    """End the conversation's active run, whose work is worth nothing any more; return it, None if there is none.

    The conversation's row has to be locked. Whatever the run's worker is at, it can commit nothing from here on. The
    check that it would have asked for at its end is due now.
    """
    active = _active(connection, conversation_id)
    if active is not None:
        connection.execute(
            update(runs)
            .where(_r.id == active.id)
            .values(
                state=RunState.SKIPPED,
                reason=RunReason.HEAD_MOVED,
                lease_token=None,
                lease_expires_at=None,
                finished_at=func.now(),
            )
        )
        webhooks.announce(connection, tenant_id, active.id)
        ended.note(RunState.SKIPPED, RunReason.HEAD_MOVED)
        mark_due(connection, conversation_id)
    return active


def _active(connection: Connection, conversation_id: UUID) -> AnyRow | None:
    return connection.execute(
        select(runs)
        .where(_r.conversation_id == conversation_id, _r.state.in_(ACTIVE), _r.block_id.is_(None))
        .with_for_update()
    ).one_or_none()


def _queue(connection: Connection, tenant_id: UUID, conversation_id: UUID, **values: Any) -> UUID:
    identifier = ids.new_id()
    connection.execute(
        insert(runs).values(
            id=identifier, tenant_id=tenant_id, conversation_id=conversation_id, state=RunState.QUEUED, **values
        )
    )
    return identifier
