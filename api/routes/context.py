"""The context by itself, and the whole payload around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from litestar import Request, Response, get, post
from litestar.openapi.spec import OpenAPIType, Schema
from litestar.params import QueryParameter

from actions import assemble_payload as payloads
from actions import read_context as contexts
from actions.auth.principals import Principal
from actions.errors import InvalidError, id_or_not_found
from actions.types.core import ContextOut, PayloadIn, PayloadOut
from api.auth.guards import requires
from api.callers import caller_of
from api.http.bodies import read_body
from api.schema import examples
from api.schema.documentation import ConversationId, answers, operation, problems
from compaction.cache_marks import MAX_MARKS
from compaction.shapes.codecs import SHAPES
from compaction.shapes.inner import Shape
from runtime import ids
from runtime.http.problem_types import EVERY_BODY

if TYPE_CHECKING:
    from collections.abc import Sequence

ContextShape = Annotated[
    Shape | None,
    QueryParameter(description="The API whose messages are served; by default that of the conversation's first turn."),
]
CacheBreakpoints = Annotated[
    int | None,
    QueryParameter(
        ge=1,
        le=MAX_MARKS,
        description="Say where `cache_control` belongs, in so many places at the most: four, less those that your "
        "system prompt and tools have. Marks that are stored are left out then.",
    ),
]
IF_NONE_MATCH: Final = Schema(
    type=OpenAPIType.STRING, description="The `ETag` of the context that the caller has, or several."
)

_ROOMS: Final = frozenset(map(str, range(1, MAX_MARKS + 1)))


@get(
    "/conversations/{conversation_id:str}/context",
    guards=[requires("context:read")],
    summary="Read the context",
    operation_class=operation(
        request_headers={"If-None-Match": IF_NONE_MATCH},
        headers={200: ("ETag", "Palimpsest-Rules", "Palimpsest-Timeline"), 304: ("ETag", "Palimpsest-Timeline")},
    ),
    responses={
        200: answers(ContextOut, "What to send as `messages`.", example=examples.CONTEXT),
        304: answers(None, "It still is what `If-None-Match` stands for."),
        **problems("not_found"),
    },
)
async def read_context(
    request: Request[Principal, Any, Any],
    conversation_id: ConversationId,
    shape: ContextShape = None,
    cache_breakpoints: CacheBreakpoints = None,
) -> Response[bytes]:
    """Answer with the head snapshot and the tail; no model, worker or broker has a part in it."""
    etags = _etags(request.headers.getall("if-none-match", []))
    conversation, wanted, room = id_or_not_found("conv", conversation_id), _known(shape), _room(cache_breakpoints)
    caller = caller_of(request)
    answer = await contexts.read_context(caller, conversation, etags, shape=wanted, breakpoint_room=room)
    headers = {**answer.headers, **caller.services.timeline}
    if answer.body is None:
        return Response(b"", status_code=304, headers=headers)
    return Response(answer.body, media_type="application/json", headers=headers)


@post(
    "/conversations/{conversation_id:str}/context",
    status_code=200,
    guards=[requires("context:read")],
    summary="Assemble the payload",
    operation_class=operation(PayloadIn, example=examples.PAYLOAD_IN, headers={200: ("Palimpsest-Rules",)}),
    responses={
        200: answers(PayloadOut, "What to send to the model.", example=examples.PAYLOAD),
        **problems(*EVERY_BODY, "not_found"),
    },
)
async def assemble_payload(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Put system prompt, carried and new context, history and the user's message under the total budget.

    No model, worker or broker has a part in it.
    """
    wanted, size = await read_body(request, PayloadIn), len(await request.body())
    answer = await payloads.assemble_payload(caller_of(request), ids.parse("conv", conversation_id), wanted, size)
    return Response(answer.body, media_type="application/json", headers=answer.headers)


def _known(shape: str | None) -> Shape | None:
    """Return a shape; raise the problem that there is no such one. A hot route's parameters come as they were sent."""
    if shape is None:
        return None
    for known in SHAPES:
        if shape == known:
            return known
    raise InvalidError(f"Expected one of {', '.join(SHAPES)}.", "shape")


def _room(given: str | int | None) -> int | None:
    """Return how many breakpoints are asked for; raise the problem that it is no such number."""
    if given is None:
        return None
    if (text := str(given)) in _ROOMS:
        return int(text)
    raise InvalidError(f"Expected a number from 1 to {MAX_MARKS}.", "cache_breakpoints")


def _etags(headers: Sequence[str]) -> list[str]:
    """Return the entity tags of `If-None-Match`, weak ones compared as strong, as it asks; `*` stands for any."""
    tags = (tag for header in headers for tag in header.split(","))
    return [tag.strip('"') for each in tags if (tag := each.strip().removeprefix("W/")) and tag != '"*"']
