"""A request that the gateway answers by itself: one of a proxy that asks what to send, and sends it itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from gateway.doors import DoorError, error_headers
from gateway.exchange import PassedRequest
from gateway.headers import said
from runtime.errors import RequestError

if TYPE_CHECKING:
    from gateway.callers import Known
    from gateway.request.relay import AnswerWriter

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


class AnsweredRequest(PassedRequest, ABC):
    """Let in, read and given up as a request that goes on, but answered here."""

    @abstractmethod
    async def reply(self, body: bytes) -> Reply:
        """Return the answer. Raises DoorError and RequestError for an error."""

    async def _pass_on(self, known: Known, body: bytes, writer: AnswerWriter) -> None:  # noqa: ARG002 - the base class's
        try:
            reply = await self.reply(body)
        except (DoorError, RequestError):
            raise
        except Exception:
            log.exception("gateway.not_answered", door=self._door.name)
            raise DoorError(503, "This can't be answered just now.", retry_after=1) from None
        self._services.metrics.requests.labels(self._door.name, reply.outcome).inc()
        self._services.metrics.saved_tokens.inc(reply.saved_tokens)
        ours = said(reply.conversation, reply.outcome, reply.saved_tokens, reply.rules)
        await writer.begin(_OK, [*error_headers(reply.body, None), *ours, self._request_header()])
        await writer.end(reply.body)
