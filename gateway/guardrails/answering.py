"""A request that the gateway answers by itself: one of a proxy that asks what to send, and sends it itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from gateway.doors import DoorError, error_headers
from gateway.exchange import PassedRequest, in_words
from gateway.headers import said
from runtime.errors import RequestError

if TYPE_CHECKING:
    from litestar.types import Send

    from gateway.callers import Known

log = structlog.get_logger()

_OK: Final = 200


class Reply(NamedTuple):
    """What is answered, and what was done."""

    body: bytes
    outcome: str
    conversation: str | None = None
    saved_tokens: int = 0
    """By estimate."""
    rules: str = ""
    """The hash over the rules in it, "" where it is not known."""


class AnsweredRequest(PassedRequest):
    """Let in, read and given up as a request that goes on, but answered here."""

    async def reply(self, body: bytes) -> Reply:
        """Return the answer. Raises DoorError and RequestError for an error."""
        raise NotImplementedError

    async def _pass_on(self, known: Known, body: bytes, send: Send) -> None:  # noqa: ARG002 - the base class's
        try:
            reply = await self.reply(body)
        except DoorError as error:
            return await self._refuse(error, send)
        except RequestError as error:
            return await self._refuse(in_words(error), send)
        except Exception:
            log.exception("gateway.not_answered", door=self._door.name)
            return await self._refuse(DoorError(503, "This can't be answered just now.", retry_after=1), send)
        self._services.metrics.requests.labels(self._door.name, reply.outcome).inc()
        self._services.metrics.saved_tokens.inc(reply.saved_tokens)
        ours = said(reply.conversation, reply.outcome, reply.saved_tokens, reply.rules)
        headers = [*error_headers(reply.body, None), *ours]
        self.status, self._has_begun = _OK, True
        await send({"type": "http.response.start", "status": _OK, "headers": [*headers, self._named_request()]})
        await send({"type": "http.response.body", "body": reply.body, "more_body": False})
        return None
