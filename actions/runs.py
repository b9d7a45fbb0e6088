"""Runs: a page of them, one that may be waited for, and dead ones begun over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actions.errors import ConflictError, NotFoundError, or_not_found
from actions.types.runs import RunOut, run_out
from compaction.steps.runs import ENDED
from store.runs import runs, stranded

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.caller import Caller
    from actions.paging import Window

    Retry = Callable[[Connection, UUID, UUID], stranded.Retried]


def page_of_runs(
    connection: Connection, tenant_id: UUID, conversation_id: UUID | None, span: Window[Any], state: str | None = None
) -> list[RunOut]:
    """Return the runs of a window, of one conversation or of all; one more than the page has."""
    rows = runs.page(connection, tenant_id, conversation_id=conversation_id, state=state, **span.query)
    steps = runs.steps_of(connection, [row.id for row in rows])
    return [run_out(row, [step for step in steps if step.run_id == row.id]) for row in rows]


async def read_run(caller: Caller, run_id: UUID, wait_seconds: float) -> RunOut:
    """Return a run, once it has ended or after so many seconds; raise the problem that there is no such one."""
    run = or_not_found(await caller.run(_one, run_id))
    if wait_seconds and run.state not in ENDED:
        await caller.services.run_waits.wait(caller.tenant_id, run_id, wait_seconds)
        run = or_not_found(await caller.run(_one, run_id))
    return run


def _one(connection: Connection, tenant_id: UUID, run_id: UUID) -> RunOut | None:
    row = runs.get(connection, tenant_id, run_id)
    return run_out(row, runs.steps_of(connection, [run_id])) if row else None


async def retry_run(caller: Caller, run_id: UUID, retry: Retry = stranded.retry) -> str:
    """Begin a dead run over by `retry` and tell the workers; return what came of it."""
    retried = await caller.run(retry, run_id)
    if retried.queue is not None:
        caller.services.wakeups.add_run(caller.tenant_id, run_id, retried.queue)
    return retried.outcome


def check_retried(outcome: str) -> None:
    """Raise the problem of a run that was not begun over."""
    match outcome:
        case "missing":
            raise NotFoundError
        case "not_dead":
            raise ConflictError("run_not_dead", "Only a dead run can be retried.")
        case "run_active":
            raise ConflictError("run_active", "Another run of this conversation has not ended yet.")


async def retry_dead_runs(
    caller: Caller, limit: int, reason: str | None, retry: Retry = stranded.retry
) -> tuple[list[UUID], bool]:
    """Begin the oldest dead runs over, those of one reason or all; return which, and whether others could be.

    One transaction each: none waits for another's conversation, and what is done stays done.
    """
    dead = await caller.run(stranded.retriable, limit + 1, reason)
    retried = [run_id for run_id in dead[:limit] if await retry_run(caller, run_id, retry) == "queued"]
    return retried, len(dead) > limit
