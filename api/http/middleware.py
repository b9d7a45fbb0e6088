"""What surrounds every request, also one that matches no route, which Litestar's own middleware does not see."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

import structlog
from litestar.enums import HttpMethod, ScopeType
from litestar.routes import HTTPRoute

from actions.errors import NotFoundError
from api.auth.guards import LIMIT_HEADERS
from api.http.hot_routes import HotRoutes
from runtime import ids
from runtime.held_bytes import HOLD, HeldBytes
from runtime.http.body_events import counted, in_pieces
from runtime.http.problem_documents import PROBLEM_MEDIA_TYPE, document_of
from runtime.http.unread_bodies import AnsweredEarly
from runtime.tracing import TRACING
from store.bytes_held import bounded_by

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from litestar import Litestar
    from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

    from actions.monitoring.metrics import Metrics
    from runtime.held_bytes import BytesUnderWay
    from runtime.http.access_log import AccessLog
    from runtime.http.security_headers import SecurityHeaders

UNMATCHED: Final = "unmatched"
"""The route of a request that has none, in the metrics."""
_OTHER: Final = re.compile(rb"//|/\.{0,2}\Z|/\.{1,2}/|%(?:2[def]|3[0-9]|[46][1-9a-f]|[57][0-9a]|5f|7e)", re.IGNORECASE)
"""What only another spelling of a path has: empty and dotted segments, a slash at its end, an encoded slash, and
characters encoded that stand for themselves (RFC 3986, 2.3)."""


def surround(
    app: Litestar, metrics: Metrics, security: SecurityHeaders, under_way: BytesUnderWay, access_log: AccessLog
) -> ASGIApp:
    """Return the application's ASGI handler with its surroundings.

    Every request gets an id, in its answer, in the log, and with the run that it leads to; HEAD is answered like GET;
    what was answered is counted, and so are the bytes that it has under way.
    """
    bare, hot, allowed = app.asgi_handler, HotRoutes(app), _methods(app)
    inner = _as_written(bare)

    async def surrounded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            return await bare(scope, receive, send)
        started = time.perf_counter()
        identifier = ids.new_id()
        name = ids.external("req", identifier)
        request: HTTPScope = scope.copy()
        method: str = request["method"]
        if method == HttpMethod.HEAD:
            request["method"] = HttpMethod.GET
        hold = HeldBytes(under_way, (scope.get("client") or ("",))[0])
        ends = AnsweredEarly(request, receive, send)
        receive = ends.receive
        request["state"] = {**request.get("state", {}), "request_uuid": identifier, "request_id": name, HOLD: hold}
        status = 500

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message["headers"], (b"request-id", name.encode()), *security.of(message["headers"])]
                headers += request["state"].get(LIMIT_HEADERS, ())
                if method == HttpMethod.OPTIONS and (methods := allowed.get(request.get("path_template", ""))):
                    # Litestar's own names only the methods of the path's first route.
                    headers = [header for header in headers if header[0] != b"allow"] + [(b"allow", methods)]
                message["headers"] = headers
            elif method == HttpMethod.HEAD and message["type"] == "http.response.body":
                message["body"] = b""
            await ends.send(message)

        bound = structlog.contextvars.bind_contextvars(request_id=name)
        traces = TRACING.traces
        span = None if traces is None else traces.begin_request(identifier, method, traceparent(request))
        try:
            if (hot_route := hot.find(request["method"], request["path"])) and b"%" not in request["raw_path"]:
                await hot.run(*hot_route, request, receive, send_with_id)
            else:
                await inner(request, receive, send_with_id)
        finally:
            hold.give_back()
            route, seconds = request.get("path_template") or UNMATCHED, time.perf_counter() - started
            access_log.add(method, route, status, seconds, getattr(request.get("user"), "tenant_id", None))
            structlog.contextvars.reset_contextvars(**bound)
            metrics.answered(method, route, status, seconds)
            if span is not None:
                span.end(method, route, status)

    return surrounded


def _methods(app: Litestar) -> dict[str, bytes]:
    """Return what each path allows, by its template."""
    return {
        route.path_format: ", ".join(sorted({*route.methods, *(["HEAD"] if "GET" in route.methods else [])})).encode()
        for route in app.routes
        if isinstance(route, HTTPRoute)
    }


def _as_written(inner: ASGIApp) -> Callable[[HTTPScope, Receive, Send], Awaitable[None]]:
    """Return an application that finds nothing at another spelling of a path: proxies compare paths as they come."""

    async def compared(scope: HTTPScope, receive: Receive, send: Send) -> None:
        if scope["raw_path"] == b"/" or not _OTHER.search(scope["raw_path"]):
            hold: HeldBytes = scope["state"][HOLD]
            with bounded_by(hold.take):
                return await inner(scope, counted(receive, hold), in_pieces(send))
        body = document_of(NotFoundError(), scope["state"]["request_id"])
        headers = [(b"content-type", PROBLEM_MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        return await send({"type": "http.response.body", "body": body, "more_body": False})

    return compared


def traceparent(scope: HTTPScope) -> str | None:
    """Return what the caller says of its own trace (W3C Trace Context)."""
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"), None)
