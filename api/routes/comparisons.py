"""Was it compaction? One turn's context under two versions, and the step that took a text out."""

from __future__ import annotations

from typing import Any

from litestar import Request, post

from actions.audit import bisect, compare
from actions.auth.principals import Principal
from actions.errors import id_or_not_found
from actions.types.comparisons import BisectIn, BisectOut, ComparisonIn, ComparisonOut
from api.auth.guards import requires
from api.callers import caller_of
from api.http.bodies import read_body
from api.schema import examples
from api.schema.documentation import ConversationId, answers, operation, problems
from runtime.http.problem_types import EVERY_BODY


@post(
    "/conversations/{conversation_id:str}/comparisons",
    status_code=200,
    guards=[requires("audit:read", "context:read")],
    summary="Compare two versions of a turn's context",
    operation_class=operation(ComparisonIn, example=examples.COMPARISON_IN),
    responses={
        200: answers(ComparisonOut, "The context under each version, and what they differ in."),
        **problems(*EVERY_BODY, "not_found"),
    },
)
async def compare_versions(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> ComparisonOut:
    """Render one turn's context under two versions, with the messages, rules and values that differ."""
    wanted = await read_body(request, ComparisonIn)
    return await compare(caller_of(request), id_or_not_found("conv", conversation_id), wanted)


@post(
    "/conversations/{conversation_id:str}/bisect",
    status_code=200,
    guards=[requires("audit:read", "context:read")],
    summary="Find what took a text out of the context",
    operation_class=operation(BisectIn, example=examples.BISECT_IN),
    responses={
        200: answers(BisectOut, "Where the text was said, and what took it out, if anything did."),
        **problems(*EVERY_BODY, "not_found"),
    },
)
async def bisect_text(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> BisectOut:
    """Find the snapshot from which on a text or value did not stand any more, and which step of which run made it."""
    wanted = await read_body(request, BisectIn)
    return await caller_of(request).run_in(id_or_not_found("conv", conversation_id), bisect, wanted.text)
