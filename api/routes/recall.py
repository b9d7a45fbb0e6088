"""Recall: originals given back by words, by reference, by pattern; and the tool by which a model asks for them."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response, get, post
from litestar.params import QueryParameter

from actions import recall_records as records
from actions.auth.principals import Principal
from actions.errors import NotFoundError, id_or_not_found
from actions.recall import recall
from actions.recall_of_user import recall_of_user
from actions.types.recall import RecallIn, RecallOut, RecallsOut, RecallToolOut, UserRecallIn, UserRecallOut
from api.auth.guards import requires
from api.callers import caller_of
from api.http.bodies import read_body
from api.http.paging import AfterId, BeforeId, Limit, window
from api.http.problems import named
from api.schema import examples
from api.schema.documentation import AnyUserRef, ConversationId, UserRef, answers, operation, problems
from compaction.recall.tool import definition
from compaction.shapes.inner import Shape
from runtime import ids
from runtime.http.problem_types import EVERY_BODY

_encode: Final = msgspec.json.Encoder().encode


@post(
    "/conversations/{conversation_id:str}/recall",
    status_code=200,
    guards=[requires("context:read")],
    summary="Recall originals",
    operation_class=operation(RecallIn, example=examples.RECALL_IN),
    responses={
        200: answers(RecallOut, "What was found.", example=examples.RECALL),
        **problems(*EVERY_BODY, "not_found"),
    },
)
async def recall_originals(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Give back originals, by words, reference or pattern, whether the context still has them or not.

    Superseded messages are never among them, nor are results of recall itself. No model, worker or broker has a part
    in it.
    """
    wanted = await read_body(request, RecallIn)
    identifier = ids.parse("conv", conversation_id)
    recalled = await recall(caller_of(request), identifier, wanted) if identifier else None
    if recalled is None:
        raise NotFoundError
    return Response(_encode(recalled), media_type="application/json")


@post(
    "/users/{user_ref:str}/recall",
    status_code=200,
    guards=[requires("recall:user")],
    summary="Recall across a user's conversations",
    operation_class=operation(UserRecallIn, example=examples.RECALL_IN),
    responses={
        200: answers(UserRecallOut, "What was found.", example=examples.USER_RECALL),
        **problems(*EVERY_BODY, "not_found"),
    },
)
async def recall_originals_of_user(request: Request[Principal, Any, Any], user_ref: UserRef) -> Response[bytes]:
    """Give back originals of all conversations with this `user_ref`, as of one; nothing where there is none.

    Its scope, `recall:user`, is in no key that was not given it by name, and not a part of `admin`.
    """
    wanted = await read_body(request, UserRecallIn)
    recalled = await recall_of_user(caller_of(request), user_ref, wanted)
    return Response(_encode(recalled), media_type="application/json")


@post(
    "/recall",
    status_code=200,
    guards=[requires("recall:user")],
    summary="Recall across a user's conversations, whatever the name",
    operation_class=operation(UserRecallIn, example=examples.RECALL_IN),
    responses={
        200: answers(UserRecallOut, "What was found.", example=examples.USER_RECALL),
        **problems(*EVERY_BODY),
    },
)
async def recall_originals_of_any_user(
    request: Request[Principal, Any, Any], user_ref: AnyUserRef = None
) -> Response[bytes]:
    """As `POST /users/{user_ref}/recall`, for names that a path cannot hold: those with a slash, `.` and `..`."""
    wanted = await read_body(request, UserRecallIn)
    recalled = await recall_of_user(caller_of(request), named(user_ref), wanted)
    return Response(_encode(recalled), media_type="application/json")


@get(
    "/conversations/{conversation_id:str}/recalls",
    guards=[requires("audit:read")],
    summary="List what was asked back",
    responses=problems("not_found", "bad_cursor"),
)
async def list_recalls(
    request: Request[Principal, Any, Any],
    conversation_id: ConversationId,
    limit: Limit = 20,
    after_id: AfterId = None,
    before_id: BeforeId = None,
) -> RecallsOut:
    """List recalls, newest first, with the messages most wanted, and what compaction should have kept.

    Those of them that the installation writes down (`recall_audit_ratio`), for as long as it keeps them.
    """
    conversation = id_or_not_found("conv", conversation_id)
    span = window(limit, after_id, before_id, lambda text: ids.parse("rcl", text))
    return await caller_of(request).run_in(conversation, records.list_recalls, span)


@get(
    "/recall-tool",
    guards=[requires("context:read")],
    summary="Read the recall tool's definition",
    responses={
        200: answers(RecallToolOut, "The tool, to be declared from a conversation's first call on."),
        **problems(),
    },
)
async def read_recall_tool(
    shape: Annotated[Shape, QueryParameter(description="The API that the tool is declared to.")] = "messages",
) -> Response[bytes]:
    """Answer with the tool's definition as the Messages API, Chat Completions or Responses take it: the same bytes."""
    return Response(_encode(definition(shape)), media_type="application/json")
