"""The button of an empty installation: it plays the demo's conversation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from litestar import Request, Response, post

from api.auth import Principal  # noqa: TC001 - Litestar reads the annotations of handlers
from api.console.pages import redirect
from api.console.sessions import ACT, may, operator_of
from api.demo.player import Playing, conversation_values
from api.demo.story import job_search
from api.problems import ProblemError
from store import conversations, ids, operator_actions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from sqlalchemy import Connection

    from api.services import Services


@post("/demo", include_in_schema=False, guards=[may(ACT)])
async def play_demo(request: Request[Principal, Any, Any]) -> Response[bytes]:
    """Make the demo's conversation, begin to play it, and lead to its page."""
    services: Services = request.app.state.services
    tenant = request.user.tenant_id
    values = conversation_values(await asyncio.to_thread(job_search))
    identifier, is_new = await services.run(tenant, _make, request, values)
    if is_new:
        request_id = request.scope["state"]["request_uuid"]
        services.demo.start(Playing(tenant, request.user.policy, identifier, request_id))
    return redirect(f"/console/conversations/{ids.external('conv', identifier)}?done=demo")


def _make(
    connection: Connection, request: Request[Principal, Any, Any], values: Mapping[str, Any]
) -> tuple[UUID, bool]:
    tenant_id = request.user.tenant_id
    row, is_new = conversations.create(connection, tenant_id, values)
    if is_new:
        # Looked at after it was made: of two that come at once the second waits for the first, and finds its own.
        if len(conversations.page(connection, tenant_id, limit=2)) > 1:
            raise ProblemError(409, "not_empty", "The demo is for an installation that has no conversations yet.")
        operator_actions.record(connection, operator_of(request), "demo", conversation_id=row.id)
    return row.id, is_new
