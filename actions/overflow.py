"""A context that the model refused as too long: made smaller at once, in the request's own transaction."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import structlog
from sqlalchemy.util import await_only

from actions.errors import ConflictError, InvalidError, or_not_found
from compaction.steps.overflow import MOST
from compaction.steps.refusal_wordings import Fault
from compaction.steps.refusals import error_text, read_refusal
from store.conversations import conversations, overflows

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.caller import Caller
    from actions.types.compactions import OverflowIn
    from compaction.steps.refusals import Refusal
    from store.conversations.overflows import Overflowed, Previewed

log = structlog.get_logger()


class RefusedCall(NamedTuple):
    """A call that a model refused.

    `snapshot_version` is the version it was made with. `tries` counts the smaller contexts of the conversation that
    were refused before and are in force nowhere; `is_fitted` says whether the context was fitted into the budget.
    """

    refusal: Refusal | None
    snapshot_version: int | None
    tries: int = 0
    is_fitted: bool = True


async def shrink_context(caller: Caller, conversation_id: UUID, wanted: OverflowIn) -> UUID | None:
    """Make the context smaller and return the run that did it, None if it was smaller already.

    Raises the problem of a refusal that is not about the history, and of a context that cannot be made any smaller.
    """
    refusal = None
    if wanted.error is not None:
        text, status = error_text(wanted.error)
        refusal = read_refusal(text, status=status)
    done = await shrink_after(caller, conversation_id, RefusedCall(refusal, wanted.snapshot_version))
    _raise_unless_done(done, refusal)
    return done.run_id


async def shrink_after(caller: Caller, conversation_id: UUID, refused: RefusedCall) -> Overflowed:
    """Make the context smaller after a refusal and return what was done; raise the problem of no such conversation."""
    done = or_not_found(await caller.run_and_wake(_overflow, conversation_id, caller, refused))
    caller.services.metrics.overflows[done.outcome].inc()
    log.warning("context.overflow", outcome=done.outcome, tokens=done.tokens, fixed_tokens=done.fixed_tokens)
    if done.summary_run_id is not None:
        caller.services.wakeups.add_run(caller.tenant_id, done.summary_run_id)
    return done


async def preview_overflow(caller: Caller, conversation_id: UUID, refused: RefusedCall) -> Previewed:
    """Return what `shrink_after` would do, and do nothing; raise the problem of no such conversation."""

    def preview(connection: Connection, tenant_id: UUID) -> Previewed | None:
        return overflows.preview(
            connection, conversation_id, lambda: _overflow(connection, tenant_id, conversation_id, caller, refused)
        )

    previewed = or_not_found(await caller.run(preview))
    if previewed.done.outcome == "exhausted":
        caller.services.metrics.overflows["exhausted"].inc()
    return previewed


def _overflow(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, caller: Caller, refused: RefusedCall
) -> Overflowed | None:
    """Make a context smaller in a transaction; return what was done, None if there is no such conversation."""
    row = conversations.get(connection, tenant_id, conversation_id)
    if row is None:
        return None
    policy = caller.principal.policy_for(row.policy, row.model).reserving(row.requested_output)
    has_summarizer = caller.services.settings.chosen_summarizer != "none"
    return overflows.overflow(
        connection,
        tenant_id,
        conversation_id,
        policy=policy,
        request_id=caller.request_id,
        snapshot_version=refused.snapshot_version,
        refusal=refused.refusal,
        summarize=has_summarizer and policy.compaction_enabled,
        tries=refused.tries,
        is_fitted=refused.is_fitted,
        # In a thread: a long context takes some tenths of a second, in which the loop serves others.
        run_compute=lambda compute: await_only(asyncio.to_thread(compute)),
    )


def _raise_unless_done(done: Overflowed, refusal: Refusal | None) -> None:
    weight = f"{done.tokens:,} tokens of messages and {done.fixed_tokens:,} of system prompt, tools and carried context"
    match done.outcome:
        case "exhausted":
            raise ConflictError(
                "overflow_exhausted",
                f"The context was made smaller {MOST} times in a row without a turn between, and was refused again. "
                f"By estimate it has {weight}; look for what else the call sends.",
            )
        case "cannot_shrink":
            raise ConflictError(
                "cannot_shrink",
                f"Nothing more may be left out: the last request and its newest round stay. By estimate there are "
                f"{weight}.",
            )
        case "not_the_history":
            fault = Fault.OTHER if refusal is None else refusal.fault
            raise ConflictError(
                "not_the_history", f"The model refused {fault}: a smaller context would be refused as well."
            )
        case "no_such_version":
            raise InvalidError("There is no such version of this conversation.", "/snapshot_version")
