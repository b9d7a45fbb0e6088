"""Passing an answer to the client as it comes, and reading it for the turn that is to be stored."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, closing, suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from gateway.answers.reading import AnswerReader, ReceivedAnswer, decompressor
from gateway.bodies import GoneError
from gateway.conversations.increments import response_key
from gateway.headers import CODED, OURS, incoming, said
from gateway.providers.answers import encoding_of
from gateway.recalls.asking import answer_calls
from gateway.recalls.lineage import recall_source
from gateway.recalls.recalling import RecallingAnswer
from gateway.request.store import store_answered
from runtime.held_bytes import BusyError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from litestar.types import Send

    from actions.caller import Caller
    from gateway.conversations.turns import PendingExchange
    from gateway.doors import Door, Headers
    from gateway.providers.answers import ProviderAnswer
    from gateway.request.call import CalledRequest
    from gateway.request.values import PreparedRequest
    from gateway.services import GatewayServices
    from runtime.held_bytes import HeldBytes

log = structlog.get_logger()

IS_CUT_OFF: Final = ContextVar("IS_CUT_OFF", default=False)
"""Whether the request's answer has no end, and that has been logged."""
_OK: Final = 200


class AnswerWriter:
    """Writes an answer to the client."""

    def __init__(self, send: Send, door: Door, *, patience_seconds: float) -> None:
        self._send = send
        self._door = door
        self._patience = patience_seconds
        self.status = 0
        """Of the answer, once it has begun."""

    async def begin(self, status: int, headers: Headers) -> None:
        """Write the head of an answer."""
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, chunk: bytes) -> None:
        """Write a piece of the body. Raises GoneError for a client that does not read it in time."""
        try:
            async with asyncio.timeout(self._patience):
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        except TimeoutError:
            raise GoneError from None

    async def end(self, last: bytes = b"") -> None:
        """Write the last piece of the body."""
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    def cut_off(self, error: Exception) -> None:
        """Leave the answer without an end, so that the client does not take the beginning for the whole."""
        IS_CUT_OFF.set(True)
        log.info("gateway.cut_off", error=type(error).__name__, door=self._door.name)


class AnswerRelay:
    """The answer to one request, from the provider to the client."""

    def __init__(
        self,
        services: GatewayServices,
        door: Door,
        caller: Caller | None,
        hold: HeldBytes,
        ask: Callable[[bytes], Awaitable[ProviderAnswer]],
    ) -> None:
        self._services = services
        self._door = door
        self._caller = caller
        self._hold = hold
        self._ask = ask
        self._response: ProviderAnswer | None = None
        self._reader: AnswerReader | RecallingAnswer | None = None
        self._recalling: RecallingAnswer | None = None
        self._unstored: CalledRequest | None = None

    def begin(self, called: CalledRequest) -> Headers:
        """Take an answer and return its headers. Of its request only the turn that is to be stored is kept."""
        response, request = called.response, called.request
        self._response = response
        metrics = self._services.metrics
        metrics.requests.labels(self._door.name, request.outcome).inc()
        metrics.answers.labels(self._door.name, response.status).inc()
        metrics.saved_tokens.inc(request.saved_tokens)
        headers = incoming(response.headers)
        self._hold.give_back()
        if response.status == _OK and request.learned is not None and self._door.is_conversation:
            if request.declares_recall and decompressor(encoding_of(response)) is not None:
                self._recalling = self._recall_for(request, request.learned)
            self._reader = self._recalling or AnswerReader(self._door.shape, dict(headers))
            self._unstored = called.without_text()
            with suppress(BusyError):
                self._hold.take(self._unstored.request.size)
        ours = said(
            request.conversation,
            request.outcome,
            request.saved_tokens,
            request.rules,
            repaired=request.repaired,
            opaque=request.opaque,
        )
        return [*headers, *ours]

    async def run(self, headers: Headers, writer: AnswerWriter) -> None:
        """Pass the answer on. Raises GoneError and CutOffError."""
        response = self._response
        if response is None:
            return
        if self._recalling is not None:
            await self._pass_on_recalling(self._recalling, response, headers, writer)
        else:
            await self._pass_on(response.pieces(), response.status, headers, writer)

    def close(self) -> None:
        """Store the turn of an answer that has no end, and let go of the provider."""
        self._begin_to_store(is_whole=False)
        if self._response is not None:
            self._response.close()

    def _recall_for(self, request: PreparedRequest, learned: PendingExchange) -> RecallingAnswer | None:
        """Return the part that answers the model's calls of recall; None without a caller."""
        if self._caller is None:
            return None
        with suppress(BusyError):
            self._hold.take(len(request.body))
        return RecallingAnswer(
            self._door.shape,
            request.body,
            self._ask,
            partial(answer_calls, self._caller, recall_source(learned)),
            as_thinking=self._services.settings.gateway_recall_as_thinking,
        )

    async def _pass_on_recalling(
        self, recalling: RecallingAnswer, response: ProviderAnswer, headers: Headers, writer: AnswerWriter
    ) -> None:
        """Pass on an answer without the calls of recall within it."""
        if dict(headers).get(b"content-type", b"").startswith(b"text/event-stream"):
            kept = [(name, value) for name, value in headers if name not in CODED]
            async with aclosing(recalling.stream(response)) as pieces:
                return await self._pass_on(pieces, response.status, kept, writer)
        last, other = await recalling.whole(response)
        own = [(name, value) for name, value in headers if name.startswith(OURS)]
        headers = [*incoming(last.headers), *own]
        if other is None:
            with closing(last):
                return await self._pass_on(last.pieces(), last.status, headers, writer)
        headers = [(name, value) for name, value in headers if name not in CODED]
        headers.append((b"content-length", b"%d" % len(other)))
        return await self._pass_on(_once(other), last.status, headers, writer)

    async def _pass_on(self, pieces: AsyncIterator[bytes], status: int, headers: Headers, writer: AnswerWriter) -> None:
        await writer.begin(status, headers)
        async for chunk in pieces:
            reader = self._reader
            if isinstance(reader, AnswerReader):
                reader.take(chunk)
            if reader is not None and reader.is_complete:
                # Before the client has its end: its next request finds it stored, or being stored.
                self._begin_to_store(is_whole=True)
            await writer.write(chunk)
        self._begin_to_store(is_whole=True)
        await writer.end()

    def _begin_to_store(self, *, is_whole: bool) -> None:
        """Begin to store the turn, once."""
        reader, called, caller = self._reader, self._unstored, self._caller
        self._reader = self._unstored = None
        if reader is None or called is None or called.learned is None or caller is None:
            return
        answered = reader.end() or ReceivedAnswer([], None, is_whole=is_whole)
        if not answered.is_whole:
            self._services.metrics.aborted.inc()
        storing = store_answered(self._services, caller, called, answered)
        names = [response_key(answered.response_ids.shown)] if answered.response_ids is not None else []
        self._services.learning.begin_turn(caller.tenant_id, called.learned, storing, names=names)


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body
