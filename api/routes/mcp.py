"""MCP over HTTP: recall for every client that speaks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from litestar import Request, Response, post
from litestar.params import FromQuery

from actions.auth.principals import Principal
from actions.auth.scopes import require_scope
from actions.errors import InvalidError
from api.auth.guards import requires
from api.schema.documentation import AnyUserRef
from runtime.errors import RequestError

if TYPE_CHECKING:
    from litestar.connection import ASGIConnection
    from litestar.handlers import BaseRouteHandler

CONVERSATION: Final = "x-palimpsest-conversation"
"""Header that names the conversation; where a client can be given a URL alone, the parameter `conversation` does."""
MOST_BYTES: Final = 256 * 1024
"""Bytes of a message: the longest query, each character of it escaped."""


def refuse_pages(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Refuse what a page in a browser sends, by whatever name it reached this host: only browsers tell an origin."""
    if "origin" in connection.headers:
        raise RequestError("forbidden", "No page of a browser may call this: it comes with an Origin.")


@post(
    "/mcp",
    status_code=200,
    guards=[refuse_pages, requires()],
    request_max_body_size=MOST_BYTES,
    include_in_schema=False,
)
async def answer_mcp(
    request: Request[Principal, Any, Any], conversation: FromQuery[str | None] = None, user_ref: AnyUserRef = None
) -> Response[bytes]:
    """Answer one message of MCP, held to the conversation that header or parameter name, or to a user's."""
    from api.mcp.exchange import exchange  # noqa: PLC0415 - the library takes most of a second to load
    from api.mcp.server import Held  # noqa: PLC0415 - the same

    held = Held(request.headers.get(CONVERSATION) or conversation, user_ref)
    if (held.conversation is None) == (held.user_ref is None):
        raise InvalidError(
            f"Name either the conversation, as the header {CONVERSATION} does, or user_ref.", "conversation"
        )
    require_scope(request.user, "context:read" if held.user_ref is None else "recall:user")
    return await exchange(request, held)
