"""The gateway as an ASGI application: its doors, and what is asked of every process."""

from __future__ import annotations

import hmac
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import structlog
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.doors import CHAT, MESSAGES, RELAYED, door_of, error_body, error_headers, no_door
from gateway.exchange import PassedRequest
from gateway.guardrails.litellm import GuardrailRequest
from gateway.relaying import RelayedRequest
from gateway.request.relay import IS_CUT_OFF
from gateway.services import GatewayServices
from runtime import ids
from runtime.http.unread_bodies import AnsweredEarly
from runtime.settings import read_once

if TYPE_CHECKING:
    from collections.abc import Mapping

    from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

    from runtime.settings import Settings

log = structlog.get_logger()

_encode: Final = msgspec.json.Encoder().encode
ANSWERED: Final[Mapping[str, type[PassedRequest]]] = {
    "litellm": GuardrailRequest,
    RELAYED: RelayedRequest,
}
"""Doors whose requests go on to no provider, or go on unread."""


class Gateway:
    """Answers requests of clients, and those for its health."""

    def __init__(self, settings: Settings) -> None:
        self._services = GatewayServices(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what a server passes on."""
        match scope["type"]:
            case "lifespan":
                await self._live(receive, send)
            case "http":
                await self._answer(cast("HTTPScope", scope), receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1000, "reason": None})

    async def _answer(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        ends = AnsweredEarly(scope, receive, send)
        receive, send = ends.receive, ends.send
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        named = dict(headers)
        door = door_of(method, path, named)
        if door is None:
            return await self._answer_itself(method, path, named, send)
        request_id = ids.new_id()
        bound = structlog.contextvars.bind_contextvars(request_id=ids.external("req", request_id))
        kind = ANSWERED.get(door.name, PassedRequest)
        exchange = kind(self._services, door, method, scope["query_string"], headers, request_id)
        try:
            await exchange.run(receive, send)
        finally:
            structlog.contextvars.reset_contextvars(**bound)
        return None

    async def _answer_itself(self, method: str, path: str, headers: Mapping[bytes, bytes], send: Send) -> None:
        core = self._services.core
        match method, path:
            case (("HEAD" | "GET"), "/"):
                await _send(send, 200, b"", "text/plain")
            case (("HEAD" | "GET"), "/healthz"):
                await _send(send, 200, _encode({"status": "ok"}))
            case (("HEAD" | "GET"), "/readyz"):
                status, parts = await core.operations.readiness()
                # With everything of ours away requests still go through.
                await _send(
                    send, 200, _encode({"status": "ok" if status == "ok" else "degraded", "parts": dict(parts)})
                )
            case (("HEAD" | "GET"), "/metrics"):
                if not self._may_see_metrics(headers):
                    await _send(send, 401, error_body(MESSAGES.shape, 401, "The token of the metrics is needed."))
                else:
                    await _send(send, 200, core.metrics.text(), CONTENT_TYPE_LATEST)
            case _:
                door = MESSAGES if b"anthropic-version" in headers else CHAT
                await _send(send, 404, error_body(door.shape, 404, no_door(method, path)))

    def _may_see_metrics(self, headers: Mapping[bytes, bytes]) -> bool:
        token = self._services.settings.metrics_token
        presented = headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        return token is None or hmac.compare_digest(presented, token.get_secret_value().encode())

    async def _live(self, receive: Receive, send: Any) -> None:
        await receive()
        try:
            await self._services.start()
        except Exception as error:
            log.exception("gateway.not_started")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        with suppress(Exception):
            await self._services.stop()
        await send({"type": "lifespan.shutdown.complete"})


async def _send(send: Send, status: int, body: bytes, media_type: str = "application/json") -> None:
    headers = error_headers(body, None)
    headers[0] = (b"content-type", media_type.encode())
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _is_news(_: logging.LogRecord) -> bool:
    """Tell whether the server may log: an answer without an end, of which `gateway.cut_off` says why, is no fault."""
    return not IS_CUT_OFF.get()


def create_gateway(settings: Settings | None = None) -> ASGIApp:
    """Return the ASGI application."""
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    settings = settings or read_once()
    gateway: Any = Gateway(settings)
    return cast("ASGIApp", gateway)
