"""Going back and branching off."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from litestar import Request, Response, post

from api.actions.restore_plans import find_version, restore_plan
from api.auth.guards import requires
from api.auth.principals import Principal
from api.http.bodies import read_body
from api.http.problem_types import EVERY_BODY
from api.http.problems import ProblemError, invalid, not_found
from api.routes.conversations import changed_out
from api.schema import examples
from api.schema.documentation import ConversationId, answers, operation, problems
from api.schema.types import ConversationBrief, ConversationOut, ForkIn, RestoreIn, RestorePlanOut
from runtime import ids
from store.conversations import branches, conversations

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection

    from api.services import Services
    from store.tables import AnyRow


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
    services: Services = request.app.state.services
    wanted = await read_body(request, RestoreIn)
    tenant, identifier = request.user.tenant_id, ids.parse("conv", conversation_id)
    try:
        if wanted.dry_run:
            return Response(await preview(services, request.user, identifier, wanted.version))
        row = await services.run(tenant, restore, request, identifier, wanted.version) if identifier else None
    except branches.SupersededError:
        detail = "This version shows messages that were replaced since."
        raise ProblemError(409, "superseded", detail, pointer="/version") from None
    if row is None:
        raise not_found()
    return Response(changed_out(row, request.user))


async def preview(
    services: Services, principal: Principal, conversation_id: UUID | None, version: int
) -> RestorePlanOut:
    """Return what a restore would give; raise the problem that there is no such version. Raises SupersededError."""
    found = await services.run(principal.tenant_id, find_version, principal, conversation_id, version)
    if found is None:
        raise not_found()
    return await asyncio.to_thread(restore_plan, found)


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
    services: Services = request.app.state.services
    wanted = await read_body(request, ForkIn)
    tenant, identifier = request.user.tenant_id, ids.parse("conv", conversation_id)
    try:
        row = await services.run(tenant, _fork, request, identifier, wanted) if identifier else None
    except branches.ExternalIdTakenError:
        detail = "A conversation has this external_id."
        raise ProblemError(409, "external_id_taken", detail, pointer="/external_id") from None
    if row is None:
        raise not_found()
    return Response(changed_out(row, request.user), status_code=201)


def restore(
    connection: Connection, request: Request[Principal, Any, Any], conversation_id: UUID, version: int
) -> AnyRow | None:
    """Go back to a version; return the conversation, None without it or the version. Raises SupersededError."""
    tenant = request.user.tenant_id
    row = conversations.get(connection, tenant, conversation_id)
    if row is None:
        return None
    made = branches.restore(
        connection,
        tenant,
        conversation_id,
        version,
        request.user.policy_for(row.policy, row.model),
        request.scope["state"]["request_uuid"],
    )
    return None if made is None else conversations.get(connection, tenant, conversation_id)


def _fork(
    connection: Connection, request: Request[Principal, Any, Any], conversation_id: UUID, wanted: ForkIn
) -> AnyRow | None:
    tenant = request.user.tenant_id
    row = conversations.get(connection, tenant, conversation_id)
    if row is None:
        return None
    made = branches.fork(
        connection,
        tenant,
        conversation_id,
        wanted.through_seq,
        wanted.external_id,
        request.user.policy_for(row.policy, row.model),
        request.scope["state"]["request_uuid"],
    )
    if made is None:
        raise invalid("There is no message with this seq, or another has replaced it.", "/through_seq")
    return conversations.get(connection, tenant, made)
