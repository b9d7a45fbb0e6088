"""What surrounds every request, also one that matches no route, which Litestar's own middleware does not see."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog
from litestar.enums import HttpMethod, ScopeType
from litestar.routes import HTTPRoute

from api.hot_routes import HotRoutes
from api.rate_limits import HEADERS
from store import ids
from store.tracing import TRACING

if TYPE_CHECKING:
    from litestar import Litestar
    from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

    from api.metrics import Metrics
    from api.security_headers import SecurityHeaders

UNMATCHED: Final = "unmatched"
"""The route of a request that has none, in the metrics."""


def surround(app: Litestar, metrics: Metrics, security: SecurityHeaders) -> ASGIApp:
    """Return the application's ASGI handler with its surroundings.

    Every request gets an id, in its answer, in the log, and with the run that it leads to; HEAD is answered like GET;
    and what was answered is counted.
    """
    inner, hot = app.asgi_handler, HotRoutes(app)
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
                headers = [*message["headers"], (b"request-id", name.encode()), *security.of(message["headers"])]
                headers += request["state"].get(HEADERS, ())
                if method == HttpMethod.OPTIONS and (methods := allowed.get(request.get("path_template", ""))):
                    # Litestar's own names only the methods of the path's first route.
                    headers = [header for header in headers if header[0] != b"allow"] + [(b"allow", methods)]
                message["headers"] = headers
            elif method == HttpMethod.HEAD and message["type"] == "http.response.body":
                message["body"] = b""
            await send(message)

        bound = structlog.contextvars.bind_contextvars(request_id=name)
        traces = TRACING.traces
        span = None if traces is None else traces.begin_request(identifier, method, traceparent(request))
        try:
            if (found := hot.find(request["method"], request["path"])) is not None:
                await hot.run(*found, request, receive, send_with_id)
            else:
                await inner(request, receive, send_with_id)
        finally:
            structlog.contextvars.reset_contextvars(**bound)
            route = request.get("path_template") or UNMATCHED
            metrics.answered(method, route, status, time.perf_counter() - started)
            if span is not None:
                span.end(method, route, status)

    return surrounded


def traceparent(scope: HTTPScope) -> str | None:
    """Return what the caller says of its own trace (W3C Trace Context)."""
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"), None)
