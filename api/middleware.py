"""What surrounds every request, also one that matches no route, which Litestar's own middleware does not see."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog
from litestar.enums import HttpMethod, ScopeType
from litestar.routes import HTTPRoute

from store import ids

if TYPE_CHECKING:
    from litestar import Litestar
    from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

    from api.metrics import Metrics

UNMATCHED: Final = "unmatched"
"""The route of a request that has none, in the metrics."""


def surround(app: Litestar, metrics: Metrics) -> ASGIApp:
    """Return the application's ASGI handler with its surroundings.

    Every request gets an id, in its answer, in the log, and with the run that it leads to; HEAD is answered like GET;
    and what was answered is counted.
    """
    inner = app.asgi_handler
    allowed = {
        route.path_format: ", ".join(sorted({*route.methods, *(["HEAD"] if "GET" in route.methods else [])})).encode()
        for route in app.routes
        if isinstance(route, HTTPRoute)
    }

    async def surrounded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            return await inner(scope, receive, send)
        started = time.perf_counter()
        identifier = ids.new_id()
        name = ids.external("req", identifier)
        request: HTTPScope = scope.copy()
        method: str = request["method"]
        if method == HttpMethod.HEAD:
            request["method"] = HttpMethod.GET
        request["state"] = {**request.get("state", {}), "request_uuid": identifier, "request_id": name}
        status = 500

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message["headers"], (b"request-id", name.encode())]
                if method == HttpMethod.OPTIONS and (methods := allowed.get(request.get("path_template", ""))):
                    # Litestar's own names only the methods of the path's first route.
                    headers = [header for header in headers if header[0] != b"allow"] + [(b"allow", methods)]
                message["headers"] = headers
            elif method == HttpMethod.HEAD and message["type"] == "http.response.body":
                message["body"] = b""
            await send(message)

        try:
            with structlog.contextvars.bound_contextvars(request_id=name):
                await inner(request, receive, send_with_id)
        finally:
            route = request.get("path_template") or UNMATCHED
            metrics.answered(method, route, status, time.perf_counter() - started)

    return surrounded
