"""The button of an empty installation: it plays the demo's conversation, and goes on where that was cut off."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Request, Response, post

from api.auth.access import Principal  # noqa: TC001 - Litestar reads the annotations of handlers
from api.console.demo import player
from api.console.demo.player import Playing
from api.console.pages import redirect
from api.console.sessions import ACT, may, operator_of
from api.http.problems import ProblemError
from runtime import ids
from store.conversations import conversations, messages
from store.operations import operator_actions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from sqlalchemy import Connection

    from api.services import Services
    from store.tables import AnyRow


@post("/demo", include_in_schema=False, guards=[may(ACT)])
async def play_demo(request: Request[Principal, Any, Any]) -> Response[bytes]:
    """Make the demo's conversation, begin to play it, or go on, and lead to its page."""
    services: Services = request.app.state.services
    tenant = request.user.tenant_id
    values = player.conversation_values(await asyncio.to_thread(player.story))
    row, is_to_play = await services.run(tenant, _make, request, values)
    if is_to_play:
        request_id = request.scope["state"]["request_uuid"]
        services.demo.start(Playing(tenant, request.user.policy, row.id, request_id, row.next_seq))
    return redirect(f"/console/conversations/{ids.external('conv', row.id)}?done=demo")


def is_cut_off(connection: Connection, tenant_id: UUID, row: AnyRow) -> bool:
    """Tell whether a conversation is the demo's, ends before the story does, and has heard nothing for a while."""
    if row.external_id != player.EXTERNAL_ID:
        return False
    last = messages.get(connection, tenant_id, row.id, row.next_seq - 1)
    quiet = datetime.now(UTC) - (last.created_at if last else row.created_at)
    if quiet.total_seconds() < player.QUIET_SECONDS:
        return False
    return player.ends_between_turns(row.next_seq, msgspec.json.decode(last.content) if last else None)


def _make(
    connection: Connection, request: Request[Principal, Any, Any], values: Mapping[str, Any]
) -> tuple[AnyRow, bool]:
    tenant_id, services = request.user.tenant_id, request.app.state.services
    row, is_new = conversations.create(connection, tenant_id, values)
    # Looked at after it was made: of two that come at once the second waits for the first, and finds its own.
    if is_new and len(conversations.page(connection, tenant_id, limit=2)) > 1:
        raise ProblemError(409, "not_empty", "The demo is for an installation that has no conversations yet.")
    is_to_play = is_new or (not services.demo.is_playing(row.id) and is_cut_off(connection, tenant_id, row))
    if is_to_play:
        outcome = "done" if is_new else "continued"
        operator_actions.record(connection, operator_of(request), "demo", outcome, conversation_id=row.id)
    return row, is_to_play
