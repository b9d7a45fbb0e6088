"""Overflow: the model refused the prompt as too long."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from litestar import Request, Response, post
from sqlalchemy.util import await_only

from api.auth.guards import requires
from api.auth.principals import Principal
from api.http.bodies import read_body
from api.http.problem_types import EVERY_BODY
from api.http.problems import ProblemError, invalid, not_found
from api.routes.context import answer_context
from api.schema import examples
from api.schema.compactions import OverflowIn
from api.schema.documentation import ConversationId, answers, operation, problems
from api.schema.types import ContextOut
from compaction.steps.overflow import MOST
from compaction.steps.refusals import read_refusal
from runtime import ids
from store.conversations import conversations, overflows

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection

    from api.services import Services
    from compaction.steps.refusals import Refused
    from store.conversations.overflows import Overflowed

log = structlog.get_logger()


@post(
    "/conversations/{conversation_id:str}/overflow",
    status_code=200,
    guards=[requires("turns:write", "context:read")],
    summary="Report that the prompt was too long",
    operation_class=operation(
        OverflowIn, example=examples.OVERFLOW_IN, optional=True, headers={200: ("ETag", "run-id")}
    ),
    responses={
        200: answers(ContextOut, "The smaller context.", example=examples.CONTEXT),
        **problems(*EVERY_BODY, "not_found", "overflow_exhausted", "cannot_shrink"),
    },
)
async def report_overflow(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Make the context strictly smaller at once, and answer with it; a summary of what is left out follows later."""
    services: Services = request.app.state.services
    wanted = await read_body(request, OverflowIn, if_empty=b"{}")
    tenant, identifier = request.user.tenant_id, ids.parse("conv", conversation_id)
    summarizer = services.settings.chosen_summarizer != "none"
    done = await services.run(tenant, _overflow, request, identifier, wanted, summarizer) if identifier else None
    if done is None or identifier is None:
        raise not_found()
    services.metrics.overflows[done.outcome].inc()
    _refuse_or_accept(done)
    if done.summary_run_id is not None:
        services.wakeups.add_run(tenant, done.summary_run_id)
    answer = await answer_context(request, identifier)
    if done.run_id is not None:
        answer.headers["run-id"] = ids.external("run", done.run_id)
    return answer


def _overflow(
    connection: Connection,
    request: Request[Principal, Any, Any],
    conversation_id: UUID,
    wanted: OverflowIn,
    summarizer: bool,  # noqa: FBT001 - called by position
) -> Overflowed | None:
    tenant = request.user.tenant_id
    row = conversations.get(connection, tenant, conversation_id)
    if row is None:
        return None
    policy = request.user.policy_for(row.policy, row.model)
    done = overflows.overflow(
        connection,
        tenant,
        conversation_id,
        policy=policy,
        request_id=request.scope["state"]["request_uuid"],
        snapshot_version=wanted.snapshot_version,
        refused=_refused(wanted.error),
        summarize=summarizer and policy.compaction_enabled,
        # In a thread: a long context takes some tenths of a second, in which the loop serves others.
        aside=lambda compute: await_only(asyncio.to_thread(compute)),
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
