"""Runs that nobody works on: those to be offered again, and the dead ones, which stay until somebody retries them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from sqlalchemy import Connection, case, exists, func, select, text, update

from compaction.steps.runs import ACTIVE, RunState
from store.conversations.conversations import lock
from store.tables import conversations, runs

if TYPE_CHECKING:
    from uuid import UUID

    from runtime.queues import Queue

_r, _c = runs.c, conversations.c


class Stranded(NamedTuple):
    """A run that nobody works on: its lease has expired, or nobody came for it."""

    run_id: UUID
    tenant_id: UUID
    queue: Queue
    attempts: int
    expired: bool


class Retried(NamedTuple):
    """What became of a retry; `queue` is where the run waits if it was taken."""

    outcome: Literal["queued", "missing", "not_dead", "run_active"]
    queue: Queue | None = None


def stranded(connection: Connection, seconds: float, limit: int, per_tenant: int = 0) -> list[Stranded]:
    """Return runs whose lease has expired or that nobody came for within `seconds`; tenants take turns.

    Of those that wait for a model, as many as their tenant may begin with `per_tenant` at a time (0 = any number).
    """
    rows = connection.execute(
        text("select * from stranded_runs_by_turns(:seconds, :limit, :per_tenant)"),
        {"seconds": seconds, "limit": limit, "per_tenant": per_tenant},
    )
    return [Stranded(*row) for row in rows]


def retry(connection: Connection, tenant_id: UUID, run_id: UUID) -> Retried:
    """Queue a dead run again, with its attempts counted from the start, and lift the hold that its death set.

    It keeps its policy, and its last error until it ends again.
    """
    row = connection.execute(select(_r.conversation_id).where(_r.id == run_id, _r.tenant_id == tenant_id)).one_or_none()
    if row is None:
        return Retried("missing")
    # Conversation before run, as everywhere; no run of it can begin from here on.
    lock(connection, row.conversation_id)
    query = select(_r.state, _r.queue, _r.block_id).where(_r.id == run_id).with_for_update()
    run = connection.execute(query).one_or_none()
    if run is None:
        return Retried("missing")  # Removed between the two looks, by retention or with its conversation.
    if run.state != RunState.DEAD:
        return Retried("not_dead")
    if connection.execute(select(_r.id).where(_r.id == run_id, _HAS_RIVAL)).one_or_none():
        return Retried("run_active")
    connection.execute(
        update(runs)
        .where(_r.id == run_id)
        .values(state=RunState.QUEUED, attempts=0, reason=None, queued_at=func.now(), started_at=None, finished_at=None)
    )
    if run.block_id is None:
        lift_hold(connection, row.conversation_id)
    return Retried("queued", run.queue)


def retriable(connection: Connection, tenant_id: UUID, limit: int, reason: str | None = None) -> list[UUID]:
    """Return dead runs that nothing blocks, oldest first; `reason` keeps those that died of it."""
    query = select(_r.id).where(_r.tenant_id == tenant_id, _r.state == RunState.DEAD, ~_HAS_RIVAL)
    if reason is not None:
        query = query.where(_r.reason == reason)
    return list(connection.execute(query.order_by(_r.id).limit(limit)).scalars())


def lift_hold(connection: Connection, conversation_id: UUID) -> None:
    """Let thresholds count again, but where a restore holds them."""
    lifted = {column: case((_c.held_by_restore, column), else_=0) for column in (_c.tool_results_hold, _c.summary_hold)}
    connection.execute(update(conversations).where(_c.id == conversation_id).values(lifted))


_active = runs.alias("active")
_HAS_RIVAL: Final = exists().where(
    _active.c.conversation_id == _r.conversation_id,
    _active.c.state.in_(ACTIVE),
    _active.c.block_id.is_not_distinct_from(_r.block_id),
)
"""Whether a run of the same conversation, or for the same context block, is active: there is only ever one."""
