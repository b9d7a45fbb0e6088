"""API keys of the tenant: who holds what, for how long, and when it was last used."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from litestar import Request, Response, get
from litestar.params import QueryParameter

from api.auth import Principal  # noqa: TC001 - Litestar reads the annotations of handlers
from api.console.pages import page
from api.console.sessions import ACT, may
from api.problems import ProblemError
from store import api_keys, ids

if TYPE_CHECKING:
    from api.services import Services

ON_A_PAGE = 50

_After = Annotated[str | None, QueryParameter(max_length=64)]


@get("/keys", include_in_schema=False, guards=[may(ACT)])
async def list_keys(request: Request[Principal, Any, Any], after: _After = None) -> Response[bytes]:
    """Show keys, newest first, those that open nothing any more among them."""
    services: Services = request.app.state.services
    tenant = request.user.tenant_id
    cursor = None if after is None else ids.parse("key", after)
    if after is not None and cursor is None:
        raise ProblemError(400, "bad_cursor", "This is not an id of this list.", pointer="after")
    found = await services.run(tenant, api_keys.page, tenant, limit=ON_A_PAGE + 1, after=cursor)
    shown = found[:ON_A_PAGE]
    older = ids.external("key", shown[-1].id) if len(found) > ON_A_PAGE else None
    return page(request, "keys.html", keys=shown, now=datetime.now(UTC), older=older)
