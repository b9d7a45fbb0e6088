"""Going back and branching off."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post

from actions import branches
from actions.auth.principals import Principal
from actions.conversations import changed_out
from actions.errors import id_or_not_found
from actions.types.core import ConversationBrief, ConversationOut, ForkIn, RestoreIn, RestorePlanOut
from api.auth.guards import requires
from api.callers import caller_of
from api.http.bodies import read_body
from api.schema import examples
from api.schema.documentation import ConversationId, answers, operation, problems
from runtime.http.problem_types import EVERY_BODY


@post(
    "/conversations/{conversation_id:str}/restore",
    status_code=200,
    guards=[requires("turns:write")],
    summary="Go back to an old snapshot",
    operation_class=operation(RestoreIn, example=examples.RESTORE_IN),
    responses={
        200: answers(
            ConversationOut | ConversationBrief | RestorePlanOut, "The head equals the old version, or would."
        ),
        **problems(*EVERY_BODY, "not_found", "superseded"),
    },
)
async def restore_snapshot(
    request: Request[Principal, Any, Any], conversation_id: ConversationId
) -> Response[ConversationOut | ConversationBrief | RestorePlanOut]:
    """Make a new head equal to an old version (0 = no compaction), and leave it alone for a while."""
    wanted = await read_body(request, RestoreIn)
    caller, conversation = caller_of(request), id_or_not_found("conv", conversation_id)
    if wanted.dry_run:
        if (plan := await branches.plan_restore(caller, conversation, wanted.version)) is None:
            raise branches.superseded()
        return Response(plan)
    row = await caller.run_and_wake(branches.restore_version, conversation, caller, wanted.version)
    return Response(changed_out(row, request.user))


@post(
    "/conversations/{conversation_id:str}/fork",
    status_code=201,
    guards=[requires("turns:write")],
    summary="Fork a conversation",
    operation_class=operation(ForkIn, example=examples.FORK_IN),
    responses={
        201: answers(ConversationOut | ConversationBrief, "A conversation with the same past."),
        **problems(*EVERY_BODY, "not_found", "external_id_taken"),
    },
)
async def fork_conversation(
    request: Request[Principal, Any, Any], conversation_id: ConversationId
) -> Response[ConversationOut | ConversationBrief]:
    """Make a conversation with the same past up to a seq, the snapshots that still apply included."""
    wanted = await read_body(request, ForkIn)
    row = await branches.fork(caller_of(request), id_or_not_found("conv", conversation_id), wanted)
    return Response(changed_out(row, request.user), status_code=201)
