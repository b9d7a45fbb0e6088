"""Conversations: created, listed, read, changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Request, Response, get, patch, post

from api.auth import Principal, requires
from api.bodies import read, read_policy
from api.documentation import PROBLEMS, ConversationId, Filter, answers, takes
from api.paging import AfterId, BeforeId, Limit, Window, page_of, window
from api.problems import not_found
from api.types import ConversationIn, ConversationOut, ConversationPatch, Page
from compaction.policy import merge
from store import conversations, ids

if TYPE_CHECKING:
    from api.services import Services
    from store.tables import AnyRow


@post(
    "/conversations",
    status_code=201,
    guards=[requires("turns:write")],
    summary="Create a conversation",
    operation_class=takes(ConversationIn),
    responses={
        200: answers(ConversationOut, "There is one with this external_id; here it is."),
        201: answers(ConversationOut, "The conversation exists now."),
        **PROBLEMS,
    },
)
async def create_conversation(request: Request[Principal, Any, Any]) -> Response[ConversationOut]:
    """Make a conversation; the same `external_id` again answers with the one that has it."""
    services: Services = request.app.state.services
    wanted = read(await request.body(), ConversationIn)
    read_policy(wanted.policy, request.user.overrides)
    row, made = await services.run(
        request.user.tenant_id, conversations.create, request.user.tenant_id, msgspec.structs.asdict(wanted)
    )
    return Response(conversation_out(row, request.user), status_code=201 if made else 200)


@get(
    "/conversations",
    guards=[requires("context:read")],
    summary="List conversations",
    responses={**PROBLEMS},
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
    services: Services = request.app.state.services
    span: Window[Any] = window(limit, after_id, before_id, lambda text: ids.parse("conv", text))
    rows = await services.run(
        request.user.tenant_id,
        conversations.page,
        request.user.tenant_id,
        limit=limit + 1,
        after=span.after,
        before=span.before,
        user_ref=user_ref,
        external_id=external_id,
    )
    return page_of([conversation_out(row, request.user) for row in rows], span, lambda item: item.id)


@get(
    "/conversations/{conversation_id:str}",
    guards=[requires("context:read")],
    summary="Read a conversation",
    responses={**PROBLEMS},
)
async def get_conversation(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> ConversationOut:
    """Answer with one conversation, its system prompt and tools included."""
    services: Services = request.app.state.services
    identifier = ids.parse("conv", conversation_id)
    tenant = request.user.tenant_id
    row = await services.run(tenant, conversations.get, tenant, identifier) if identifier else None
    if row is None:
        raise not_found()
    return conversation_out(row, request.user)


@patch(
    "/conversations/{conversation_id:str}",
    guards=[requires("turns:write")],
    summary="Change a conversation",
    operation_class=takes(ConversationPatch),
    responses={**PROBLEMS},
)
async def change_conversation(
    request: Request[Principal, Any, Any], conversation_id: ConversationId
) -> ConversationOut:
    """Change the policy, system prompt, tools, model or metadata; what is not named stays."""
    services: Services = request.app.state.services
    wanted = msgspec.to_builtins(read(await request.body(), ConversationPatch))
    read_policy(wanted.get("policy", {}), request.user.overrides)
    identifier = ids.parse("conv", conversation_id)
    tenant = request.user.tenant_id
    row = await services.run(tenant, conversations.change, tenant, identifier, wanted) if identifier else None
    if row is None:
        raise not_found()
    if "policy" in wanted and identifier is not None:
        services.wakeups.add(identifier)
    return conversation_out(row, request.user)


def conversation_out(row: AnyRow, principal: Principal) -> ConversationOut:
    """Return a conversation as clients see it; one from a list has no system prompt and tools."""
    stored = row._mapping  # noqa: SLF001 - SQLAlchemy's name for a row as a mapping, and public
    return ConversationOut(
        id=ids.external("conv", row.id),
        external_id=row.external_id,
        user_ref=row.user_ref,
        model=row.model,
        policy=msgspec.to_builtins(merge(principal.overrides, row.policy)),
        policy_overrides=row.policy,
        metadata=stored["metadata"],
        created_at=row.created_at,
        last_seq=row.next_seq - 1,
        head_version=row.head_version,
        pending_version=row.pending_version,
        context_tokens=int(row.context_tokens),
        context_messages=row.context_messages,
        check_due_at=row.check_due_at,
        system=stored.get("system", msgspec.UNSET),
        tools=stored.get("tools", msgspec.UNSET),
    )
