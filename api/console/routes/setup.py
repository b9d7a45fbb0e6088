"""What a conversation was set up with; all of it to take along, and its erasure."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from litestar import Request, Response, get, post
from litestar.response import Stream

from actions.auth.principals import Principal
from actions.erase import lines_of_one
from actions.errors import InvalidError, id_or_not_found, or_not_found
from api.callers import caller_of
from api.console.forms import read_form
from api.console.pages import HEADERS, page, redirect
from api.console.sessions import ACT, HOME, READ, may
from api.console.views.setup import setup
from api.schema.documentation import ConversationId
from store.archive import erasures, exports
from store.console import contents
from store.conversations import conversations
from store.operations import operator_actions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.caller import Caller
    from store.operations.operator_actions import Operator
    from store.tables import AnyRow


@get("/conversations/{conversation_id:str}/setup", include_in_schema=False, guards=[may(READ)])
async def show_setup(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Show system prompt, tools, metadata and the policy in force of a conversation."""
    caller, principal = caller_of(request), request.user
    row = await _existing(caller, conversation_id)
    content = await asyncio.to_thread(
        setup,
        row,
        principal.in_force(row.policy, row.model),
        of_tenant=principal.overrides,
        of_installation=caller.services.settings.policy,
    )
    return page(request, "setup.html", conversation=row, tab="setup", setup=content)


@post("/conversations/{conversation_id:str}/export", include_in_schema=False, guards=[may(READ)])
async def export_conversation(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Stream:
    """Answer with all that is stored of a conversation as JSON lines, and write down who took it along."""
    caller, conversation = caller_of(request), id_or_not_found("conv", conversation_id)
    row = or_not_found(await caller.run(_take_along, conversation, caller.operator))
    headers = {**HEADERS, "content-disposition": f'attachment; filename="{conversation_id}.jsonl"'}
    return Stream(lines_of_one(caller, row), media_type="application/jsonl", headers=headers, status_code=200)


@get("/conversations/{conversation_id:str}/erase", include_in_schema=False, guards=[may(READ)])
async def show_erasure(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Show what an erasure would remove, and ask."""
    caller = caller_of(request)
    row = await _existing(caller, conversation_id)
    figures = or_not_found(await caller.run(contents.figures, row.id))
    return page(request, "erase.html", conversation=row, tab="setup", figures=figures)


@post("/conversations/{conversation_id:str}/erase", include_in_schema=False, guards=[may(ACT)])
async def erase_conversation(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Erase a conversation for good, and write down who did."""
    if (await read_form(request)).get("agreed") != "yes":
        raise InvalidError("Tick that nothing of it can be had back.", "agreed")
    caller, conversation = caller_of(request), id_or_not_found("conv", conversation_id)
    await caller.services.erase(caller.tenant_id, _erase, conversation, caller)
    return redirect(f"{HOME}/operators?done=erased")


async def _existing(caller: Caller, conversation_id: str) -> AnyRow:
    return or_not_found(await caller.run(conversations.get, id_or_not_found("conv", conversation_id)))


def _take_along(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, operator: Operator
) -> Mapping[str, Any] | None:
    row = exports.conversation(connection, tenant_id, conversation_id)
    if row is not None:
        operator_actions.record(connection, operator, "export", conversation_id=conversation_id)
    return row


def _erase(connection: Connection, conversation_id: UUID, caller: Caller) -> None:
    # A tombstone answers for what was erased before, and nothing is done again: whoever asks first is written down.
    or_not_found(conversations.get(connection, caller.tenant_id, conversation_id))
    or_not_found(erasures.erase(connection, caller.operator, conversation_id))
    operator_actions.record(connection, caller.operator, "erase", conversation_id=conversation_id)
