"""Overflow: the model refused the prompt as too long."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post

from actions.auth.principals import Principal
from actions.errors import id_or_not_found
from actions.overflow import shrink_context
from actions.read_context import read_context
from actions.types.compactions import OverflowIn
from actions.types.core import ContextOut
from api.auth.guards import requires
from api.callers import caller_of
from api.http.bodies import read_body
from api.schema import examples
from api.schema.documentation import ConversationId, answers, operation, problems
from runtime import ids
from runtime.http.problem_types import EVERY_BODY


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
