"""The routes of every chat turn, run without the framework's routing, binding of parameters and making of answers.

Handlers, guards and problems are those that the framework would run, and it still has the routes: for the document, for
other methods, and for paths that are written in an unusual way. Only what it does around a handler is left out, which
was a quarter of the CPU time of a request.
"""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from litestar import Request, Response
from litestar.exceptions import InternalServerException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge
from litestar.routes import HTTPRoute

from api.http.problems import CUT_OFF, answer_to
from runtime.held_bytes import HOLD
from runtime.http.body_events import PIECE_BYTES, in_pieces, next_of_body
from runtime.http.pace import BodyPace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from litestar import Litestar
    from litestar.handlers import HTTPRouteHandler
    from litestar.types import HTTPResponseStartEvent, HTTPScope, Receive, Send

    from runtime.held_bytes import HeldBytes

_START: Final = "/v1/conversations/"
_HOT: Final = (("POST", "turns"), ("GET", "context"), ("POST", "context"))
"""Method and last part of the path."""


class HotRoute(NamedTuple):
    """A route of the framework's that is run directly."""

    template: str
    handler: HTTPRouteHandler
    guards: Sequence[Callable[..., Any]]
    function: Callable[..., Awaitable[Response[bytes]]]
    status: int
    """Of an answer that does not say."""


class HotRoutes:
    """Finds hot routes and runs them; the framework has to have them, with no middleware or hook of its own."""

    def __init__(self, app: Litestar) -> None:
        self._app = app
        most = app.request_max_body_size
        self._most = most if isinstance(most, int) else math.inf
        registered: dict[tuple[str, str], HTTPRouteHandler] = {
            (method, route.path_format): handler
            for route in app.routes
            if isinstance(route, HTTPRoute)
            for method, (handler, _) in route.route_handler_map.items()
        }
        self._routes: dict[tuple[str, str], HotRoute] = {}
        for method, end in _HOT:
            template = f"{_START}{{conversation_id}}/{end}"
            handler = registered[method, template]
            self._routes[method, end] = HotRoute(
                template, handler, handler.resolve_guards(), handler.fn, handler.status_code
            )

    def find(self, method: str, path: str) -> tuple[HotRoute, str] | None:
        """Return the hot route of a request and the conversation in its path, None for the framework's requests."""
        if not path.startswith(_START):
            return None
        conversation, _, end = path[len(_START) :].partition("/")
        route = self._routes.get((method, end))
        return (route, conversation) if route is not None and conversation else None

    async def run(self, route: HotRoute, conversation: str, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """Answer a request of a hot route."""
        scope["litestar_app"] = self._app
        scope["route_handler"] = route.handler
        scope["path_params"] = {"conversation_id": conversation}
        scope["path_template"] = route.template
        request = _HotRequest(scope, receive, send)
        request.most = self._most
        try:
            for guard in route.guards:
                await guard(request, route.handler)
            # The guards have refused what the route does not have; the path's own is not to be named again.
            asked = {name: value for name, value in request.query_params.items() if name != "conversation_id"}
            response = await route.function(request, conversation, **asked)
        except Exception as error:  # noqa: BLE001 - every one is answered, as the framework would
            response = answer_to(request, error)
        await send(_start_of(response, response.status_code or route.status))
        if len(response.content) > PIECE_BYTES:
            send = in_pieces(send)
        await send({"type": "http.response.body", "body": response.content, "more_body": False})


class _HotRequest(Request[Any, Any, Any]):
    """A request whose body is read in one step where it came in one."""

    most: float = math.inf
    _read: bytes | None = None

    async def body(self) -> bytes:
        """Return the body; raise what the framework raises for one that is too large, ends early or stops coming."""
        if int(self.headers.get("content-length", 0)) > self.most:
            raise RequestEntityTooLarge
        hold: HeldBytes = self.scope["state"][HOLD]
        if self._read is not None:
            return self._read
        parts: list[bytes] = []
        size, more, pace = 0, True, BodyPace()
        while more:
            event = await next_of_body(self.receive, hold, pace)
            if event["type"] != "http.request":
                raise InternalServerException(CUT_OFF)
            parts.append(event["body"])
            size += len(event["body"])
            if size > self.most:
                raise RequestEntityTooLarge
            more = event["more_body"]
        self._read = parts[0] if len(parts) == 1 else b"".join(parts)
        return self._read


def _start_of(response: Response[bytes], status: int) -> HTTPResponseStartEvent:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.items()]
    if status != HTTPStatus.NOT_MODIFIED:
        media_type = str(response.media_type)
        headers.append((b"content-type", media_type.encode("latin-1")))
        headers.append((b"content-length", b"%d" % len(response.content)))
    return {"type": "http.response.start", "status": status, "headers": headers}
