"""Conversations: created, listed, read, changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Request, Response, get, patch, post

from api.actions.assemblies import last_assembly
from api.auth.guards import may, requires
from api.auth.principals import Principal
from api.http.bodies import check_metadata, read_body, read_changes, read_model, read_overrides
from api.http.paging import AfterId, BeforeId, Limit, Window, page_of, window
from api.http.problem_types import EVERY_BODY
from api.http.problems import not_found
from api.schema import examples
from api.schema.documentation import ConversationId, Filter, answers, operation, problems
from api.schema.types import ConversationBrief, ConversationIn, ConversationOut, ConversationPatch, Page
from compaction.overrides import policy_warnings
from runtime import ids
from store.conversations import assemblies, conversations

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection

    from api.services import Services
    from compaction.policy import Policy
    from store.conversations.assemblies import AssemblyRecord
    from store.tables import AnyRow


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
    services: Services = request.app.state.services
    wanted = msgspec.structs.asdict(await read_body(request, ConversationIn))
    check_metadata(wanted["metadata"], services.strict.limits)
    named = wanted.pop("policy_preset")
    wanted["policy"] = read_overrides(wanted["policy"], named, request.user.overrides, model=wanted["model"])
    read_model(wanted["model"], request.user.overrides, wanted["policy"])
    row, made = await services.run(request.user.tenant_id, conversations.create, request.user.tenant_id, wanted)
    return Response(changed_out(row, request.user), status_code=201 if made else 200)


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
    responses=problems("not_found"),
)
async def get_conversation(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> ConversationOut:
    """Answer with one conversation, its system prompt and tools included."""
    services: Services = request.app.state.services
    identifier = ids.parse("conv", conversation_id)
    found = await services.run(request.user.tenant_id, _get, request.user.tenant_id, identifier) if identifier else None
    if found is None:
        raise not_found()
    answer = conversation_out(found[0], request.user)
    answer.last_assembly = last_assembly(found[1]) if found[1] else None
    return answer


def _get(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> tuple[AnyRow, AssemblyRecord | None] | None:
    row = conversations.get(connection, tenant_id, conversation_id)
    return (row, assemblies.last(connection, tenant_id, conversation_id)) if row is not None else None


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
    services: Services = request.app.state.services
    wanted = msgspec.to_builtins(await read_body(request, ConversationPatch))
    check_metadata(wanted.get("metadata"), services.strict.limits)
    identifier = ids.parse("conv", conversation_id)
    row = await services.run(request.user.tenant_id, _change, request.user, identifier, wanted)
    if row is None or identifier is None:
        raise not_found()
    if "policy" in wanted:
        services.wakeups.add(identifier, request.user.tenant_id)
    return changed_out(row, request.user)


def _change(
    connection: Connection, principal: Principal, conversation_id: UUID | None, wanted: dict[str, Any]
) -> AnyRow | None:
    """Change a conversation; None if there is no such one. What is written is in `wanted` afterwards."""
    named = wanted.pop("policy_preset", None)
    # Locked: a policy that another change makes meanwhile is not taken back by this one.
    stored = conversations.get(connection, principal.tenant_id, conversation_id, lock=True) if conversation_id else None
    model = wanted.get("model", stored.model if stored else None)
    if named is not None or "policy" in wanted:
        had = stored.policy if stored else {}
        wanted["policy"] = read_changes(wanted.get("policy", {}), named, had, principal.overrides, model=model)
    if stored is None or conversation_id is None:
        return None
    if not {"policy", "model"}.isdisjoint(wanted):
        read_model(model, principal.overrides, wanted.get("policy", stored.policy))
    before = principal.policy_for(stored.policy, stored.model)
    after = principal.policy_for(wanted.get("policy", stored.policy), model)
    if after != before:
        # Another window makes another policy.
        wanted.setdefault("policy", stored.policy)
    return conversations.change(
        connection,
        principal.tenant_id,
        conversation_id,
        wanted,
        result_cap=after.max_tool_result_chars if "policy" in wanted else None,
        view_changes=_cuts(before) != _cuts(after),
    )


def _cuts(policy: Policy) -> tuple[Any, ...]:
    """Return what of a policy decides how inline tool results are shown."""
    return (policy.inline_tool_tags, policy.inline_tool_tags and policy.tool_result_retention_chars)


def changed_out(row: AnyRow, principal: Principal) -> ConversationOut | ConversationBrief:
    """Return a conversation that was made, found or changed, as far as the key may read it."""
    shown = conversation_out(row, principal)
    if may(principal, "context:read"):
        return shown
    return ConversationBrief(**{name: getattr(shown, name) for name in ConversationBrief.__struct_fields__})


def conversation_out(row: AnyRow, principal: Principal) -> ConversationOut:
    """Return a conversation as clients see it; one from a list has no system prompt and tools."""
    stored = row._mapping  # noqa: SLF001 - SQLAlchemy's name for a row as a mapping, and public
    policy, _, ignored = principal.in_force(row.policy, row.model)
    return ConversationOut(
        id=ids.external("conv", row.id),
        external_id=row.external_id,
        user_ref=row.user_ref,
        model=row.model,
        policy=msgspec.to_builtins(policy),
        policy_overrides=row.policy,
        warnings=[*ignored, *policy_warnings(policy)],
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
