"""The button of an empty installation: it plays the demo's conversation, and goes on where that was cut off."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from litestar import Request, Response, post

from actions.auth.principals import Principal
from actions.errors import ConflictError
from api.callers import caller_of
from api.console.demo import player
from api.console.demo.player import DemoPlayer, Playing, is_cut_off
from api.console.pages import redirect
from api.console.sessions import ACT, may
from runtime import ids
from store.conversations import conversations
from store.operations import operator_actions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from actions.services import Services
    from store.tables import AnyRow


@post("/demo", include_in_schema=False, guards=[may(ACT)])
async def play_demo(request: Request[Principal, Any, Any]) -> Response[bytes]:
    """Make the demo's conversation, begin to play it, or go on, and lead to its page."""
    services: Services = request.app.state.services
    tenant = request.user.tenant_id
    values = player.conversation_values(await asyncio.to_thread(player.story))
    row, is_to_play = await services.run(tenant, _make, request, values)
    if is_to_play:
        request.app.state.demo.start(Playing(caller_of(request), row.id, row.next_seq))
    return redirect(f"/console/conversations/{ids.external('conv', row.id)}?done=demo")


def _make(
    connection: Connection, request: Request[Principal, Any, Any], values: Mapping[str, Any]
) -> tuple[AnyRow, bool]:
    tenant_id = request.user.tenant_id
    demo: DemoPlayer = request.app.state.demo
    row, is_new = conversations.create(connection, tenant_id, values)
    # Looked at after it was made: of two that come at once the second waits for the first, and finds its own.
    if is_new and len(conversations.page(connection, tenant_id, limit=2)) > 1:
        raise ConflictError("not_empty", "The demo is for an installation that has no conversations yet.")
    is_to_play = is_new or (not demo.is_playing(row.id) and is_cut_off(connection, tenant_id, row))
    if is_to_play:
        outcome = "done" if is_new else "continued"
        operator_actions.record(connection, caller_of(request).operator, "demo", outcome, conversation_id=row.id)
    return row, is_to_play
