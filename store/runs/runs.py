"""Runs: the job rows. Every claim counts an attempt before the work; every write needs the lease that was claimed.

All times are the database's: a worker's clock decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
from sqlalchemy import Connection, bindparam, case, func, insert, or_, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert as upsert

from compaction.overrides import in_force
from compaction.steps.holds import GrowthHold
from compaction.steps.ladder import growth_margin
from compaction.steps.runs import RunKind, RunReason, RunState, RunTrigger, StepState
from runtime import ids
from runtime.queues import Queue
from store.conversations.context_blocks import RUNS_WITH_BLOCKS
from store.conversations.conversations import hold, mark_due
from store.tables import conversations, run_steps, runs
from store.tenants import webhooks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal
    from uuid import UUID

    from compaction.policy import Policy
    from store.tables import AnyRow

_BY_THRESHOLDS: Final = frozenset({RunKind.LADDER})
"""Kinds that thresholds bring about: when one dies, the next turn must not start it over."""

_r = runs.c


class LeaseHolder(NamedTuple):
    """Whom a lease is given to."""

    worker: str
    """Host and process id, for people."""
    process_id: UUID | None = None
    """The process of `processes` that is heard of for it: its lease ends with that. None = it only runs out."""


class Lease(NamedTuple):
    """The right to work on a run: writes count only while the row still carries this token."""

    run_id: UUID
    tenant_id: UUID
    conversation_id: UUID
    token: UUID
    attempt: int
    queue: Queue
    kind: RunKind
    trigger: str
    policy: Policy
    request_id: UUID | None
    block_id: UUID | None = None
    """The context block that the run is to summarize; None for a run over the conversation."""
    strategy: str | None = None
    """What a run by hand asks for; None for one that the thresholds brought about."""
    instructions: str | None = None
    """What a summary is to stress, by the wish of whoever asked for the run."""
    parent_version: int | None = None
    base_version: int | None = None
    """The version before an overflow, that the run starts from; its result follows `parent_version`, the overflow's."""
    target_tokens: int | None = None
    """Tokens that the overflow left, and that the result may not exceed."""
    ignored: tuple[str, ...] = ()
    """What is not in force of the policy that the run was given, and why: another version may have stored it."""


class StepRecord(NamedTuple):
    """What is written down of a step; tokens are estimates, durations milliseconds."""

    name: str
    state: StepState
    tokens_before: int
    tokens_after: int
    messages_before: int
    messages_after: int
    duration_ms: int
    reason: str | None = None
    detail: str | None = None
    error: str | None = None
    snapshot_version: int | None = None
    results_cut: int | None = None
    shared_tokens: int | None = None
    """That contexts before and after begin with alike."""
    summarizer: str | None = None
    model: str | None = None
    prompt_version: str | None = None
    model_calls: int = 0
    model_input_tokens: int | None = None
    model_output_tokens: int | None = None
    cost_usd: Decimal | None = None


def start(
    connection: Connection,
    tenant_id: UUID,
    conversation_id: UUID,
    *,
    kind: RunKind,
    trigger: RunTrigger,
    policy: Policy,
    holder: LeaseHolder,
    lease_seconds: float,
) -> Lease | None:
    """Begin a run and claim it; None if the conversation has an active one. The check's mark comes off with it."""
    request_id = connection.scalar(
        select(conversations.c.check_request_id)
        .where(conversations.c.id == conversation_id, conversations.c.tenant_id == tenant_id)
        .with_for_update()
    )
    row = connection.execute(
        upsert(runs)
        .values(
            id=ids.new_id(),
            tenant_id=tenant_id,
            conversation_id=conversation_id,
            kind=kind,
            trigger=trigger,
            state=RunState.RUNNING,
            queue=Queue.CHECKS,
            policy=msgspec.to_builtins(policy),
            request_id=request_id,
            attempts=1,
            lease_token=func.gen_random_uuid(),
            lease_expires_at=_expiry(lease_seconds),
            **holder._asdict(),
            started_at=func.now(),
        )
        .on_conflict_do_nothing()
        .returning(*_LEASE)
    ).one_or_none()
    if row is None:
        return None
    connection.execute(update(conversations).where(conversations.c.id == conversation_id).values(check_due_at=None))
    return _lease(row)


def claim(
    connection: Connection, run_id: UUID, *, holder: LeaseHolder, lease_seconds: float, max_attempts: int
) -> Lease | None:
    """Take over a queued run, or one whose lease has expired; None if there is nothing to take."""
    row = connection.execute(
        update(runs)
        .where(_r.id == run_id, _r.attempts < max_attempts, _free())
        .values(
            state=RunState.RUNNING,
            attempts=_r.attempts + 1,
            lease_token=func.gen_random_uuid(),
            lease_expires_at=_expiry(lease_seconds),
            **holder._asdict(),
            started_at=func.coalesce(_r.started_at, func.now()),
        )
        .returning(*_LEASE)
    ).one_or_none()
    return _lease(row) if row else None


def heartbeat(connection: Connection, leases: Sequence[Lease], lease_seconds: float) -> set[UUID]:
    """Extend leases of one tenant and return their runs, less those whose leases are lost or just ending."""
    tokens = [(lease.run_id, lease.token) for lease in leases]
    # What a commit is writing is not waited for: the other leases would be as late.
    held = (
        select(_r.id)
        .where(tuple_(_r.id, _r.lease_token).in_(tokens), _r.state == RunState.RUNNING)
        .with_for_update(key_share=True, skip_locked=True)
    )
    extended = update(runs).where(_r.id.in_(held)).values(lease_expires_at=_expiry(lease_seconds)).returning(_r.id)
    return set(connection.scalars(extended))


def hand_over(connection: Connection, lease: Lease, queue: Queue) -> bool:
    """Queue a run for the workers of another queue; attempts count anew there, and it begins once one takes it."""
    changed = connection.execute(
        update(runs)
        .where(*_held(lease))
        .values(
            state=RunState.QUEUED,
            queue=queue,
            attempts=0,
            queued_at=func.now(),
            started_at=None,
            lease_token=None,
            lease_expires_at=None,
        )
    )
    return changed.rowcount > 0


def give_back(connection: Connection, lease: Lease, error: str) -> None:
    """Queue a run for another attempt after a fault; `error` stays with it until it ends."""
    connection.execute(
        update(runs)
        .where(*_held(lease))
        .values(state=RunState.QUEUED, error=error, queued_at=func.now(), lease_token=None, lease_expires_at=None)
    )


def release(connection: Connection, lease: Lease) -> bool:
    """Queue a run for another worker because this one stops; the attempt does not count. False if it was lost."""
    changed = connection.execute(
        update(runs)
        .where(*_held(lease))
        .values(
            state=RunState.QUEUED,
            attempts=_r.attempts - 1,
            queued_at=func.now(),
            lease_token=None,
            lease_expires_at=None,
        )
    )
    return changed.rowcount > 0


def add_step(connection: Connection, lease: Lease, step: StepRecord) -> None:
    """Write a step down as the run's next, also where the lease was lost: what it cost is known to nobody else."""
    connection.execute(select(_r.id).where(_r.id == lease.run_id).with_for_update())
    number = select(func.coalesce(func.max(run_steps.c.step_no), 0) + 1).where(run_steps.c.run_id == lease.run_id)
    connection.execute(
        insert(run_steps).values(
            tenant_id=lease.tenant_id,
            run_id=lease.run_id,
            step_no=number.scalar_subquery(),
            attempt=lease.attempt,
            **step._asdict(),
        )
    )


def written_step(connection: Connection, lease: Lease, name: str, *, after_version: int) -> AnyRow | None:
    """Return the step of a name by which this attempt wrote a snapshot after a version; attempts may count anew."""
    return connection.execute(
        select(run_steps).where(
            run_steps.c.run_id == lease.run_id,
            run_steps.c.attempt == lease.attempt,
            run_steps.c.name == name,
            run_steps.c.snapshot_version > after_version,
        )
    ).one_or_none()


def end(
    connection: Connection,
    lease: Lease,
    state: RunState,
    reason: str | None,
    error: str | None,
    *,
    tokens: tuple[int, int] | None = None,
) -> bool:
    """Close a run with what its steps came to; False if the lease was lost.

    `tokens` are those before and after the whole run, where they are not its first step's and its last one's.
    """
    steps = [step for step in steps_of(connection, [lease.run_id]) if step.reason != RunReason.LEASE_LOST]
    first, last = (steps[0], steps[-1]) if steps else (None, None)
    if tokens is None and first and last:
        tokens = (first.tokens_before, last.tokens_after)
    committed = [step.snapshot_version for step in steps if step.snapshot_version is not None]
    changed = connection.execute(
        update(runs)
        .where(*_held(lease))
        .values(
            state=state,
            reason=reason,
            error=error,
            snapshot_version=max(committed, default=None),
            tokens_before=tokens[0] if tokens else None,
            tokens_after=tokens[1] if tokens else None,
            messages_before=first.messages_before if first else None,
            messages_after=last.messages_after if last else None,
            lease_token=None,
            lease_expires_at=None,
            finished_at=func.now(),
        )
    )
    if changed.rowcount:
        webhooks.announce(connection, lease.tenant_id, lease.run_id)
    return changed.rowcount > 0


_FAULT: Final = case(
    (_r.state == RunState.RUNNING, "worker_lost: the attempt's worker ended, or stood still, without a word"),
    else_=_r.error,
)
"""Of an attempt that nobody ended; a run that waits in its queue has that of the attempt before."""


def requeue(connection: Connection, run_id: UUID, max_attempts: int) -> Queue | Literal[RunState.DEAD] | None:
    """Put a stranded run back into its queue and return that queue's name, or bury it where it is out of attempts.

    None is a run that somebody else has dealt with.
    """
    # Conversation before run, as everywhere: the other order could meet a commit half-way.
    connection.execute(
        select(conversations.c.id)
        .where(conversations.c.id.in_(select(_r.conversation_id).where(_r.id == run_id)))
        .with_for_update()
    )
    buried = connection.execute(
        update(runs)
        .where(_r.id == run_id, _r.attempts >= max_attempts, _free())
        .values(
            state=RunState.DEAD,
            reason=RunReason.ATTEMPTS_EXHAUSTED,
            error=_FAULT,
            lease_token=None,
            lease_expires_at=None,
            finished_at=func.now(),
        )
        .returning(_r.tenant_id, _r.conversation_id, _r.policy, _r.kind)
    ).one_or_none()
    if buried:
        webhooks.announce(connection, buried.tenant_id, run_id)
        if buried.kind != RunKind.CONTEXT_BLOCK:
            if buried.kind in _BY_THRESHOLDS:
                _hold_after_death(connection, buried.conversation_id, in_force(buried.policy).policy)
            # Checks that came while it was active were left to it.
            mark_due(connection, buried.conversation_id)
        return RunState.DEAD
    queue = connection.execute(
        update(runs)
        .where(_r.id == run_id, _free())
        .values(state=RunState.QUEUED, error=_FAULT, queued_at=func.now(), lease_token=None, lease_expires_at=None)
        .returning(_r.queue)
    ).scalar_one_or_none()
    return None if queue is None else Queue(queue)


def page(
    connection: Connection,
    tenant_id: UUID,
    *,
    conversation_id: UUID | None,
    limit: int,
    state: str | None = None,
    after: UUID | None = None,
    before: UUID | None = None,
) -> Sequence[AnyRow]:
    """Return up to `limit` runs, newest first; `after` continues to older ones, `before` to newer."""
    query = RUNS_WITH_BLOCKS.where(_r.tenant_id == tenant_id)
    if state is not None:
        query = query.where(_r.state == state)
    if conversation_id is not None:
        query = query.where(_r.conversation_id == conversation_id)
    if before is not None:
        newer = query.where(_r.id > before).order_by(_r.id).limit(limit)
        return list(reversed(connection.execute(newer).all()))
    if after is not None:
        query = query.where(_r.id < after)
    return connection.execute(query.order_by(_r.id.desc()).limit(limit)).all()


def get(connection: Connection, tenant_id: UUID, run_id: UUID) -> AnyRow | None:
    """Return one run."""
    return connection.execute(RUNS_WITH_BLOCKS.where(_r.tenant_id == tenant_id, _r.id == run_id)).one_or_none()


def steps_of(connection: Connection, run_ids: Sequence[UUID]) -> Sequence[AnyRow]:
    """Return the steps of several runs in order."""
    return connection.execute(
        select(run_steps)
        .where(run_steps.c.run_id.in_(bindparam("runs", list(run_ids), expanding=True)))
        .order_by(run_steps.c.run_id, run_steps.c.step_no)
    ).all()


def _hold_after_death(connection: Connection, conversation_id: UUID, policy: Policy) -> None:
    """Keep the next turn from starting over what has just failed for good."""
    hold(
        connection,
        conversation_id,
        tool_results=GrowthHold(growth_margin(policy.input_token_budget, policy)),
        summary=GrowthHold(growth_margin(policy.compaction_threshold_tokens, policy)),
        trim=policy.max_context_bytes // 10,
        media_through=connection.scalar(
            select(conversations.c.newest_media).where(conversations.c.id == conversation_id)
        ),
    )


_LEASE = (
    _r.id,
    _r.tenant_id,
    _r.conversation_id,
    _r.lease_token,
    _r.attempts,
    _r.queue,
    _r.kind,
    _r.trigger,
    _r.policy,
    _r.request_id,
    _r.block_id,
    _r.strategy,
    _r.instructions,
    _r.parent_version,
    _r.base_version,
    _r.target_tokens,
)


def _lease(row: AnyRow) -> Lease:
    policy, _, ignored = in_force(row.policy)
    return Lease(
        run_id=row.id,
        tenant_id=row.tenant_id,
        conversation_id=row.conversation_id,
        token=row.lease_token,
        attempt=row.attempts,
        queue=Queue(row.queue),
        kind=RunKind(row.kind),
        trigger=row.trigger,
        policy=policy,
        request_id=row.request_id,
        block_id=row.block_id,
        strategy=row.strategy,
        instructions=row.instructions,
        parent_version=row.parent_version,
        base_version=row.base_version,
        target_tokens=row.target_tokens,
        ignored=ignored,
    )


def _expiry(seconds: float) -> Any:
    return func.now() + func.make_interval(0, 0, 0, 0, 0, 0, seconds)


def _held(lease: Lease) -> tuple[Any, ...]:
    return (_r.id == lease.run_id, _r.lease_token == lease.token, _r.state == RunState.RUNNING)


def _free() -> Any:
    return or_(_r.state == RunState.QUEUED, (_r.state == RunState.RUNNING) & (_r.lease_expires_at < func.now()))
