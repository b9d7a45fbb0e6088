"""Conversations: created, listed, read, changed."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get, patch, post

from actions import conversations
from actions.auth.principals import Principal
from actions.errors import id_or_not_found
from actions.paging import page_of
from actions.types.core import ConversationBrief, ConversationIn, ConversationOut, ConversationPatch, Page
from api.auth.guards import requires
from api.callers import caller_of
from api.http.bodies import read_body
from api.http.paging import AfterId, BeforeId, Limit, window
from api.schema import examples
from api.schema.documentation import ConversationId, Filter, answers, operation, problems
from runtime import ids
from runtime.http.problem_types import EVERY_BODY
from store.conversations.conversations import page


@post(
    "/conversations",
    status_code=201,
    guards=[requires("turns:write")],
    summary="Create a conversation",
    operation_class=operation(ConversationIn, example=examples.CONVERSATION_IN),
    responses={
        200: answers(ConversationOut | ConversationBrief, "There is one with this external_id; here it is."),
        201: answers(
            ConversationOut | ConversationBrief, "The conversation exists now.", example=examples.CONVERSATION
        ),
        **problems(*EVERY_BODY),
    },
)
async def create_conversation(
    request: Request[Principal, Any, Any],
) -> Response[ConversationOut | ConversationBrief]:
    """Make a conversation; the same `external_id` again answers with the one that has it."""
    body = await read_body(request, ConversationIn)
    answer, is_new = await conversations.create_conversation(caller_of(request), body)
    return Response(answer, status_code=201 if is_new else 200)


@get(
    "/conversations",
    guards=[requires("context:read")],
    summary="List conversations",
    responses=problems("bad_cursor"),
)
async def list_conversations(
    request: Request[Principal, Any, Any],
    user_ref: Filter = None,
    external_id: Filter = None,
    limit: Limit = 20,
    after_id: AfterId = None,
    before_id: BeforeId = None,
) -> Page[ConversationOut]:
    """List conversations, newest first."""
    span = window(limit, after_id, before_id, lambda text: ids.parse("conv", text))
    rows = await caller_of(request).run(page, user_ref=user_ref, external_id=external_id, **span.query)
    return page_of([conversations.conversation_out(row, request.user) for row in rows], span, lambda item: item.id)


@get(
    "/conversations/{conversation_id:str}",
    guards=[requires("context:read")],
    summary="Read a conversation",
    responses=problems("not_found"),
)
async def get_conversation(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> ConversationOut:
    """Answer with one conversation, its system prompt and tools included."""
    return await conversations.read_conversation(caller_of(request), id_or_not_found("conv", conversation_id))


@patch(
    "/conversations/{conversation_id:str}",
    guards=[requires("turns:write")],
    summary="Change a conversation",
    operation_class=operation(ConversationPatch, example=examples.CONVERSATION_PATCH),
    responses=problems(*EVERY_BODY, "not_found"),
)
async def change_conversation(
    request: Request[Principal, Any, Any], conversation_id: ConversationId
) -> ConversationOut | ConversationBrief:
    """Change the policy, system prompt, tools, model or metadata; what is not named stays."""
    body = await read_body(request, ConversationPatch)
    return await conversations.change_conversation(caller_of(request), ids.parse("conv", conversation_id), body)
