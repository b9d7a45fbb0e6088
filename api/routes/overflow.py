"""Overflow: the model refused the prompt as too long."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post

from api.actions.caller import caller_of
from api.actions.contexts import read_context
from api.actions.overflows import shrink_context
from api.auth.guards import requires
from api.auth.principals import Principal
from api.http.bodies import read_body
from api.http.problem_types import EVERY_BODY
from api.http.problems import id_or_not_found
from api.schema import examples
from api.schema.compactions import OverflowIn
from api.schema.documentation import ConversationId, answers, operation, problems
from api.schema.types import ContextOut
from runtime import ids


@post(
    "/conversations/{conversation_id:str}/overflow",
    status_code=200,
    guards=[requires("turns:write", "context:read")],
    summary="Report that the prompt was too long",
    operation_class=operation(
        OverflowIn, example=examples.OVERFLOW_IN, optional=True, headers={200: ("ETag", "Palimpsest-Rules", "run-id")}
    ),
    responses={
        200: answers(ContextOut, "The smaller context.", example=examples.CONTEXT),
        **problems(*EVERY_BODY, "not_found", "overflow_exhausted", "cannot_shrink", "not_the_history"),
    },
)
async def report_overflow(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Make the context strictly smaller at once, and answer with it; a summary of what is left out follows later."""
    wanted = await read_body(request, OverflowIn, if_empty=b"{}")
    caller, conversation = caller_of(request), id_or_not_found("conv", conversation_id)
    run_id = await shrink_context(caller, conversation, wanted)
    answer = await read_context(caller, conversation, shape=wanted.shape)
    headers = answer.headers | ({} if run_id is None else {"run-id": ids.external("run", run_id)})
    return Response(answer.body or b"", media_type="application/json", headers=headers)
