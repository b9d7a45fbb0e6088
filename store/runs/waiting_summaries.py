"""Summaries that wait for another day's budget: remembered when a run meets its end, queued again in their time.

A conversation has one at most, and so has a context block. Meanwhile an extract is in the summary's place, or the
oldest exchanges are left out; the summary is made from the version before that, as after an overflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from sqlalchemy import Connection, and_, func, insert, literal, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert

from compaction.steps.catalogue import SUMMARY
from compaction.steps.runs import ACTIVE, RunTrigger
from store.conversations import context_blocks, conversations
from store.conversations.conversations import mark_due
from store.runs import requested
from store.runs.stranded import lift_hold
from store.tables import conversations as conversation_rows
from store.tables import messages, runs, snapshots, waiting_summaries
from store.tenants.budgets import NEXT_DAY

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from uuid import UUID

    from compaction.policy import Policy
    from store.runs.runs import Lease
    from store.tables import AnyRow

LOOP_SECONDS: Final = 600
"""Seconds until it is looked again whether a tool loop has ended, in which nothing else may become the head."""
QUIET_SECONDS: Final = 86_400
"""Seconds without a message after which the end of a tool loop is waited for no longer."""

_w, _r, _c, _s, _m = waiting_summaries.c, runs.c, conversation_rows.c, snapshots.c, messages.c


class Waiting(NamedTuple):
    """A summary whose time has come."""

    run_id: UUID
    tenant_id: UUID


class Resumed(NamedTuple):
    """What became of one: a run was `queued`, the conversation is to be `checked`, it still `waits`, or is `over`."""

    outcome: Literal["queued", "checked", "waits", "over"]
    run_id: UUID | None = None


def remember(connection: Connection, lease: Lease, base_version: int | None) -> None:
    """Have a run's summary wait for the next day; `base_version` is what it is to be made from.

    Where one waits already, it goes on from the older version, and has waited since then, as has one that met the end
    of another day's budget.
    """
    connection.execute(update(runs).where(_r.id == lease.run_id).values(not_before=NEXT_DAY))
    same = (
        _w.block_id == lease.block_id
        if lease.block_id is not None
        else (_w.conversation_id == lease.conversation_id) & _w.block_id.is_(None)
    )
    earlier = connection.execute(
        update(waiting_summaries)
        .where(same, _w.done_at.is_(None))
        .values(done_at=func.now())
        .returning(_w.base_version, _w.created_at)
    ).one_or_none()
    since = _waited_since(connection, lease) if lease.trigger == RunTrigger.BUDGET else None
    if (
        earlier is not None
        and base_version is not None
        and _way(connection, lease.conversation_id, earlier.base_version) is not None
    ):
        # What an extract covers already is summarized with the rest.
        base_version, since = min(earlier.base_version, base_version), earlier.created_at
    connection.execute(
        upsert(waiting_summaries)
        .values(
            run_id=lease.run_id,
            tenant_id=lease.tenant_id,
            conversation_id=lease.conversation_id,
            block_id=lease.block_id,
            base_version=base_version,
            not_before=NEXT_DAY,
            created_at=func.now() if since is None else since,
        )
        # A connection can end between a commit and its answer.
        .on_conflict_do_nothing(index_elements=[_w.run_id])
    )


def copy(connection: Connection, conversation_id: UUID, new_id: UUID, run_id: UUID) -> None:
    """Have a fork's summary wait as the conversation's does; `run_id` is the fork's run."""
    columns = {"run_id": literal(run_id, _w.run_id.type), "conversation_id": literal(new_id, _w.conversation_id.type)}
    names = ("run_id", "conversation_id", "tenant_id", "base_version", "not_before")
    rows = select(*(columns.get(name, _w[name]) for name in names)).where(
        _w.conversation_id == conversation_id, _w.block_id.is_(None), _w.done_at.is_(None)
    )
    connection.execute(insert(waiting_summaries).from_select(list(names), rows))


def has_waited(connection: Connection, block_id: UUID) -> bool:
    """Tell whether a context block's summary has waited before."""
    return connection.execute(select(_w.run_id).where(_w.block_id == block_id).limit(1)).one_or_none() is not None


def due(connection: Connection, limit: int) -> list[Waiting]:
    """Return those of any tenant whose time has come; tenants take turns."""
    rows = connection.execute(text("select * from due_waiting_summaries(:limit)"), {"limit": limit})
    return [Waiting(*row) for row in rows]


def postpone(connection: Connection, tenant_id: UUID) -> int:
    """Have all of a tenant wait for the next day: today's budget is spent as well. Return how many."""
    changed = connection.execute(
        update(waiting_summaries)
        .where(_w.tenant_id == tenant_id, _w.done_at.is_(None), _w.not_before <= func.now())
        .values(not_before=NEXT_DAY)
    )
    return changed.rowcount


def resume(connection: Connection, waiting: Waiting, policy_of: Callable[[AnyRow], Policy]) -> Resumed:
    """Queue the run that makes up for a summary, if what it was to be made from still leads to the head.

    `policy_of` returns the policy in force for a conversation's row.
    """
    # Conversation before run, as everywhere; and only then is it known that no other sweeper is about it.
    whose = select(_w.conversation_id).where(_w.run_id == waiting.run_id).scalar_subquery()
    connection.execute(select(_c.id).where(_c.id == whose).with_for_update())
    columns = (_w.conversation_id, _w.block_id, _w.base_version)
    wish = connection.execute(select(*columns).where(_w.run_id == waiting.run_id, _w.done_at.is_(None))).one_or_none()
    if wish is None:
        return Resumed("over")
    row = conversations.get(connection, waiting.tenant_id, wish.conversation_id)
    if row is None:
        return _over(connection, waiting)
    if wish.block_id is not None:
        return _resume_block(connection, waiting, wish, policy_of(row))
    return _resume_conversation(connection, waiting, wish, row, policy_of(row))


def _resume_conversation(
    connection: Connection, waiting: Waiting, wish: AnyRow, row: AnyRow, policy: Policy
) -> Resumed:
    if row.pending_version is not None:
        return _wait_for_loop(connection, waiting, wish.conversation_id)
    if _has_active_run(connection, wish.conversation_id):
        return Resumed("waits")
    way = _way(connection, wish.conversation_id, wish.base_version)
    over = _over(connection, waiting)
    if way is None:
        return over
    if not way:
        # Nothing could be done without a model: the thresholds decide, as if it had just grown over them.
        lift_hold(connection, wish.conversation_id)
        mark_due(connection, wish.conversation_id)
        return Resumed("checked")
    run = _run(connection, waiting)
    identifier = requested.summarize_overflow(
        connection,
        waiting.tenant_id,
        wish.conversation_id,
        trigger=RunTrigger.BUDGET,
        policy=policy,
        request_id=run.request_id,
        instructions=run.instructions,
        base_version=wish.base_version,
        parent_version=row.head_version,
        target_tokens=policy.compaction_threshold_tokens,
    )
    return Resumed("queued", identifier)


def _wait_for_loop(connection: Connection, waiting: Waiting, conversation_id: UUID) -> Resumed:
    """Look again in a while, unless nobody goes on with the loop: what stands in the summary's place does so then."""
    newest = select(_m.created_at).where(_m.conversation_id == conversation_id).order_by(_m.seq.desc()).limit(1)
    is_quiet = newest.scalar_subquery() < func.now() - func.make_interval(0, 0, 0, 0, 0, 0, QUIET_SECONDS)
    if connection.scalar(select(is_quiet)):
        return _over(connection, waiting)
    connection.execute(
        update(waiting_summaries)
        .where(_w.run_id == waiting.run_id)
        .values(not_before=func.now() + func.make_interval(0, 0, 0, 0, 0, 0, LOOP_SECONDS))
    )
    return Resumed("waits")


def _resume_block(connection: Connection, waiting: Waiting, wish: AnyRow, policy: Policy) -> Resumed:
    block = context_blocks.material(connection, wish.block_id)
    _over(connection, waiting)
    if block.summary is not None or not block.wanted or _has_active_run(connection, None, wish.block_id):
        return Resumed("over")
    identifier = requested.summarize_block(
        connection,
        waiting.tenant_id,
        wish.conversation_id,
        wish.block_id,
        policy=policy,
        request_id=_run(connection, waiting).request_id,
    )
    return Resumed("queued", identifier)


def _over(connection: Connection, waiting: Waiting) -> Resumed:
    connection.execute(update(waiting_summaries).where(_w.run_id == waiting.run_id).values(done_at=func.now()))
    return Resumed("over")


def _waited_since(connection: Connection, lease: Lease) -> datetime | None:
    """Return since when what a run makes up for has waited; None if it is known no longer."""
    of_conversation = (_r.conversation_id == lease.conversation_id) & _r.block_id.is_(None) & (_r.id < lease.run_id)
    earlier = select(_w.created_at).join(runs, _r.id == _w.run_id).where(of_conversation)
    since: datetime | None = connection.scalar(earlier.order_by(_r.id.desc()).limit(1))
    return since


def _way(connection: Connection, conversation_id: UUID, base: int) -> list[int] | None:
    """Return the versions that lead from `base` to the head; None if it is not on the way, or what stands is.

    That is a summary, or a version that was gone back to.
    """
    link = (
        select(_s.version, _s.parent_version, _s.step)
        .join(conversation_rows, and_(_c.id == _s.conversation_id, _c.head_version == _s.version))
        .where(_c.id == conversation_id, _s.version > base)
        .cte("link", recursive=True)
    )
    link = link.union_all(
        select(_s.version, _s.parent_version, _s.step).where(
            _s.conversation_id == conversation_id, _s.version == link.c.parent_version, _s.version > base
        )
    )
    way = connection.execute(select(link).order_by(link.c.version)).all()
    start = way[0].parent_version if way else connection.scalar(select(_c.head_version).where(_c.id == conversation_id))
    if start != base or any(each.step in {SUMMARY.name, RunTrigger.RESTORE} for each in way):
        return None
    return [each.version for each in way]


def _has_active_run(connection: Connection, conversation_id: UUID | None, block_id: UUID | None = None) -> bool:
    which: Any = (
        _r.block_id == block_id
        if block_id is not None
        else (_r.conversation_id == conversation_id) & _r.block_id.is_(None)
    )
    active = connection.execute(select(_r.id).where(which, _r.state.in_(ACTIVE)).limit(1))
    return active.one_or_none() is not None


def _run(connection: Connection, waiting: Waiting) -> AnyRow:
    return connection.execute(select(_r.request_id, _r.instructions).where(_r.id == waiting.run_id)).one()
