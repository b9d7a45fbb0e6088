"""What a conversation was set up with; all of it to take along, and its erasure."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from litestar import Request, Response, get, post
from litestar.response import Stream

from api.actions.exports import lines_of_one
from api.auth.principals import Principal
from api.console.forms import read_form
from api.console.pages import HEADERS, page, redirect
from api.console.sessions import ACT, HOME, READ, may, operator_of
from api.console.views.setup import setup
from api.http.bytes_under_way import HOLD
from api.http.problems import invalid, not_found
from api.routes.administration.erasures import asking
from api.schema.documentation import ConversationId
from runtime import ids
from store.archive import erasures, exports
from store.console import contents
from store.conversations import conversations
from store.operations import operator_actions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from sqlalchemy import Connection

    from api.services import Services
    from store.operations.operator_actions import Operator
    from store.tables import AnyRow


@get("/conversations/{conversation_id:str}/setup", include_in_schema=False, guards=[may(READ)])
async def show_setup(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Show system prompt, tools, metadata and the policy in force of a conversation."""
    services: Services = request.app.state.services
    row, _ = await _found(request, conversation_id)
    principal = request.user
    shown = await asyncio.to_thread(
        setup,
        row,
        principal.in_force(row.policy, row.model),
        of_tenant=principal.overrides,
        of_installation=services.settings.policy,
    )
    return page(request, "setup.html", conversation=row, tab="setup", setup=shown)


@post("/conversations/{conversation_id:str}/export", include_in_schema=False, guards=[may(READ)])
async def export_conversation(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Stream:
    """Answer with all that is stored of a conversation as JSON lines, and write down who took it along."""
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("conv", conversation_id)
    row = await services.run(tenant, _take_along, operator_of(request), identifier) if identifier else None
    if row is None:
        raise not_found()
    headers = {**HEADERS, "content-disposition": f'attachment; filename="{conversation_id}.jsonl"'}
    return Stream(
        lines_of_one(services, request.scope["state"][HOLD], tenant, row),
        media_type="application/jsonl",
        headers=headers,
        status_code=200,
    )


@get("/conversations/{conversation_id:str}/erase", include_in_schema=False, guards=[may(READ)])
async def show_erasure(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Show what an erasure would remove, and ask."""
    services: Services = request.app.state.services
    row, identifier = await _found(request, conversation_id)
    tenant = request.user.tenant_id
    figures = await services.run(tenant, contents.figures, tenant, identifier)
    if figures is None:
        raise not_found()
    return page(request, "erase.html", conversation=row, tab="setup", figures=figures)


@post("/conversations/{conversation_id:str}/erase", include_in_schema=False, guards=[may(ACT)])
async def erase_conversation(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Erase a conversation for good, and write down who did."""
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("conv", conversation_id)
    if (await read_form(request)).get("agreed") != "yes":
        raise invalid("Tick that nothing of it can be had back.", "agreed")
    if identifier is None or not await services.run(tenant, _erase, request, identifier):
        raise not_found()
    return redirect(f"{HOME}/operators?done=erased")


async def _found(request: Request[Principal, Any, Any], conversation_id: str) -> tuple[AnyRow, UUID]:
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("conv", conversation_id)
    row = await services.run(tenant, conversations.get, tenant, identifier) if identifier else None
    if row is None or identifier is None:
        raise not_found()
    return row, identifier


def _take_along(connection: Connection, operator: Operator, conversation_id: UUID) -> Mapping[str, Any] | None:
    row = exports.conversation(connection, operator.tenant_id, conversation_id)
    if row is not None:
        operator_actions.record(connection, operator, "export", conversation_id=conversation_id)
    return row


def _erase(connection: Connection, request: Request[Principal, Any, Any], conversation_id: UUID) -> bool:
    # A tombstone answers for what was erased before, and nothing is done again: whoever asks first is written down.
    if conversations.get(connection, request.user.tenant_id, conversation_id) is None:
        return False
    if erasures.erase(connection, asking(request), conversation_id) is None:
        return False
    operator_actions.record(connection, operator_of(request), "erase", conversation_id=conversation_id)
    return True
