"""A context that the model refused as too long: made smaller at once, in the request's own transaction."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from sqlalchemy.util import await_only

from api.http.problems import ProblemError, invalid, or_not_found
from compaction.steps.overflow import MOST
from compaction.steps.refusals import read_refusal
from store.conversations import conversations, overflows

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection

    from api.actions.caller import Caller
    from api.schema.compactions import OverflowIn
    from compaction.steps.refusals import Refused
    from store.conversations.overflows import Overflowed

log = structlog.get_logger()


async def shrink_context(caller: Caller, conversation_id: UUID, wanted: OverflowIn) -> UUID | None:
    """Make the context smaller and return the run that did it, None where it was smaller already.

    Raises the problem of one that cannot be made any smaller.
    """
    done = or_not_found(await caller.run(_overflow, conversation_id, caller, wanted))
    caller.services.metrics.overflows[done.outcome].inc()
    _refuse_or_accept(done)
    if done.summary_run_id is not None:
        caller.services.wakeups.add_run(caller.tenant_id, done.summary_run_id)
    return done.run_id


def _overflow(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, caller: Caller, wanted: OverflowIn
) -> Overflowed | None:
    row = conversations.get(connection, tenant_id, conversation_id)
    if row is None:
        return None
    policy = caller.principal.policy_for(row.policy, row.model)
    has_summarizer = caller.services.settings.chosen_summarizer != "none"
    done = overflows.overflow(
        connection,
        tenant_id,
        conversation_id,
        policy=policy,
        request_id=caller.request_id,
        snapshot_version=wanted.snapshot_version,
        refused=_refused(wanted.error),
        summarize=has_summarizer and policy.compaction_enabled,
        # In a thread: a long context takes some tenths of a second, in which the loop serves others.
        run_compute=lambda compute: await_only(asyncio.to_thread(compute)),
    )
    log.warning("context.overflow", outcome=done.outcome, tokens=done.tokens, fixed_tokens=done.fixed_tokens)
    return done


def _refused(error: str | dict[str, Any] | None) -> Refused | None:
    """Return the numbers in what the model's API answered."""
    if error is None:
        return None
    return read_refusal(error if isinstance(error, str) else msgspec.json.encode(error).decode())


def _refuse_or_accept(done: Overflowed) -> None:
    weight = f"{done.tokens:,} tokens of messages and {done.fixed_tokens:,} of system prompt, tools and carried context"
    match done.outcome:
        case "exhausted":
            raise ProblemError(
                409,
                "overflow_exhausted",
                f"The context was made smaller {MOST} times in a row without a turn between, and was refused again. "
                f"By estimate it has {weight}; look for what else the call sends.",
            )
        case "cannot_shrink":
            raise ProblemError(
                409,
                "cannot_shrink",
                f"Nothing more may be left out: the last request and its newest round stay. By estimate there are "
                f"{weight}.",
            )
        case "no_such_version":
            raise invalid("There is no such version of this conversation.", "/snapshot_version")
