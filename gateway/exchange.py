"""One request: what goes on of it, the answer as it comes, and what is learned when it has ended."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, closing, suppress
from contextvars import ContextVar
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import structlog

from actions.caller import Caller
from gateway.answers.reading import Answered, AnswerReader, decompressor
from gateway.bodies import GoneError, read_body, until_gone
from gateway.conversations.increments import response_key
from gateway.doors import DoorError, error_body, error_headers
from gateway.headers import CODED, CODING, OURS, REQUEST, incoming, outgoing, said
from gateway.preparing import prepare
from gateway.providers.answers import CutOffError, encoding_of
from gateway.recalls.asking import answer
from gateway.recalls.lineage import asker_of
from gateway.recalls.recalling import RecallingAnswer
from gateway.refusals import RetriedCall, store_accepted
from runtime import ids
from runtime.errors import RequestError
from runtime.held_bytes import BusyError, HeldBytes
from runtime.http.problem_documents import status_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from litestar.types import Receive, Send

    from gateway.callers import Known
    from gateway.doors import Door, Headers
    from gateway.preparing import PreparedRequest
    from gateway.providers.answers import ProviderAnswer
    from gateway.services import GatewayServices

log = structlog.get_logger()

IS_CUT_OFF: Final = ContextVar("IS_CUT_OFF", default=False)
"""Whether the request's answer has no end, and that has been logged."""
_OK: Final = 200


class PassedRequest:
    """One request of a door."""

    def __init__(
        self, services: GatewayServices, door: Door, method: str, query: bytes, headers: Headers, request_id: UUID
    ) -> None:
        self._services = services
        self._door = door
        self._method = method
        self._query = query
        self._headers = headers
        self._named = dict(headers)
        self._request_id = request_id
        self._hold = HeldBytes(services.under_way)
        self._reader: AnswerReader | RecallingAnswer | None = None
        self._recalling: RecallingAnswer | None = None
        self._prepared: PreparedRequest | None = None
        self._caller: Caller | None = None
        self._began = 0.0
        self._has_begun = False
        self.status = 0

    async def run(self, receive: Receive, send: Send) -> None:
        """Answer the request."""
        try:
            await self._run(receive, send)
        finally:
            self._hold.give_back()

    async def _run(self, receive: Receive, send: Send) -> None:
        settings = self._services.settings
        try:
            known = await self._services.callers.of(self._named)
            self._caller = await self._admitted(known)
            body, is_decoded = await read_body(
                receive,
                self._named,
                self._hold,
                most=settings.gateway_max_body_bytes,
                seconds=settings.gateway_reader_seconds,
            )
        except DoorError as error:
            return await self._refuse(error, send)
        except RequestError as error:
            return await self._refuse(in_words(error), send)
        except GoneError:
            return None
        self._began = time.perf_counter()
        if is_decoded:
            del self._named[CODING]
            self._headers = [(name, value) for name, value in self._headers if name != CODING]
        passing = self._pass_on(known, body, send)
        del body
        # A client that goes away takes its call with it.
        async with until_gone(receive):
            await passing
        return None

    async def _admitted(self, known: Known) -> Caller | None:
        if known.principal is None:
            return None
        self._hold.belong_to(known.principal.tenant_id)
        core = self._services.core
        if core.rate_limits.is_on:
            await core.rate_limits.check(known.principal)
        return Caller(core, known.principal, self._request_id, self._hold)

    async def _pass_on(self, known: Known, body: bytes, send: Send) -> None:
        metrics = self._services.metrics
        response: ProviderAnswer | None = None
        try:
            with metrics.under_way.track_inprogress():
                prepared = await prepare(self._services, self._caller, self._door, self._named, body)
                del body
                call = RetriedCall(self._services, self._caller, self._door, partial(self._send, known))
                response, prepared = await call.answer(prepared)
                headers = self._begin(known, response, prepared)
                # What was sent is not kept in memory while the answer comes, unless the model may recall.
                del prepared
                if self._recalling is not None:
                    await self._answer_recalling(self._recalling, response, headers, send)
                else:
                    await self._answer(response.pieces(), response.status, headers, send)
        except DoorError as error:
            await self._refuse(error, send)
        except (CutOffError, GoneError) as error:
            self._cut_off(error)
        finally:
            self._learn(is_whole=False)
            if response is not None:
                response.close()

    async def _send(self, known: Known, prepared: PreparedRequest) -> ProviderAnswer:
        self._services.metrics.added_seconds.observe(time.perf_counter() - self._began)
        return await self._ask(known, prepared.body)

    async def _ask(self, known: Known, body: bytes) -> ProviderAnswer:
        services = self._services
        tenant_id = known.principal.tenant_id if known.principal else None
        provider = services.providers.of(tenant_id, self._door.shape)
        size = len(body) if self._method == "POST" else None
        headers = outgoing(
            self._headers,
            shape=self._door.shape,
            provider_key=None if known.is_beside else provider.key or "",
            size=size,
        )
        return await services.calls.send(self._method, provider, self._door, self._query, headers, body)

    def _begin(self, known: Known, response: ProviderAnswer, prepared: PreparedRequest) -> Headers:
        """Note what is to be learned of an answer; return its headers."""
        metrics = self._services.metrics
        metrics.requests.labels(self._door.name, prepared.outcome).inc()
        metrics.answers.labels(self._door.name, response.status).inc()
        metrics.saved_tokens.inc(prepared.saved_tokens)
        headers = incoming(response.headers)
        self._hold.give_back()
        if response.status == _OK and prepared.learned is not None and self._door.is_conversation:
            is_read = decompressor(encoding_of(response)) is not None
            if is_read and prepared.as_it_came is not None and self._caller is not None:
                self._recalling = self._recalls(known, self._caller, prepared)
            self._reader = self._recalling or AnswerReader(self._door.shape, dict(headers))
            self._prepared = prepared.as_sent()
            with suppress(BusyError):
                self._hold.take(self._prepared.size)
        ours = said(
            prepared.conversation,
            prepared.outcome,
            prepared.saved_tokens,
            prepared.rules,
            repaired=prepared.repaired,
        )
        return [*headers, *ours, self._named_request()]

    def _named_request(self) -> tuple[bytes, bytes]:
        """Return the header that says the request's id."""
        return REQUEST, ids.external("req", self._request_id).encode()

    def _recalls(self, known: Known, caller: Caller, prepared: PreparedRequest) -> RecallingAnswer | None:
        """Return what answers the model's calls of recall."""
        if prepared.learned is None:
            return None
        with suppress(BusyError):
            self._hold.take(len(prepared.body))
        return RecallingAnswer(
            self._door.shape,
            prepared.body,
            partial(self._ask, known),
            partial(answer, caller, asker_of(prepared.learned)),
            as_thinking=self._services.settings.gateway_recall_as_thinking,
        )

    async def _answer_recalling(
        self, recalling: RecallingAnswer, response: ProviderAnswer, headers: Headers, send: Send
    ) -> None:
        """Pass on an answer without the calls of recall within it."""
        if dict(headers).get(b"content-type", b"").startswith(b"text/event-stream"):
            kept = [(name, value) for name, value in headers if name not in CODED]
            async with aclosing(recalling.stream(response)) as pieces:
                return await self._answer(pieces, response.status, kept, send)
        last, other = await recalling.whole(response)
        own = [(name, value) for name, value in headers if name.startswith(OURS)]
        headers = [*incoming(last.headers), *own]
        if other is None:
            with closing(last):
                return await self._answer(last.pieces(), last.status, headers, send)
        headers = [(name, value) for name, value in headers if name not in CODED]
        headers.append((b"content-length", b"%d" % len(other)))
        return await self._answer(_once(other), last.status, headers, send)

    async def _answer(self, pieces: AsyncIterator[bytes], status: int, headers: Headers, send: Send) -> None:
        self.status = status
        self._has_begun = True
        await send({"type": "http.response.start", "status": status, "headers": headers})
        async for chunk in pieces:
            reader = self._reader
            if isinstance(reader, AnswerReader):
                reader.take(chunk)
            if reader is not None and reader.is_complete:
                # Before the client has its end: its next request finds it stored, or being stored.
                self._learn(is_whole=True)
            await self._write(send, chunk)
        self._learn(is_whole=True)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, chunk: bytes) -> None:
        """Send a piece; wait for a slow client, but not for good."""
        try:
            async with asyncio.timeout(self._services.settings.gateway_reader_seconds):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except TimeoutError:
            raise GoneError from None

    def _learn(self, *, is_whole: bool) -> None:
        """Begin to store the turn, once."""
        reader, prepared, caller = self._reader, self._prepared, self._caller
        self._reader = self._prepared = None
        if reader is None or prepared is None or prepared.learned is None or caller is None:
            return
        answered = reader.end() or Answered([], None, is_whole=is_whole)
        if not answered.is_whole:
            self._services.metrics.aborted.inc()
        storing = store_accepted(self._services, caller, prepared, answered)
        names = [response_key(answered.response_ids.shown)] if answered.response_ids is not None else []
        self._services.learning.begin_turn(caller.tenant_id, prepared.learned, storing, names=names)

    def _cut_off(self, error: Exception) -> None:
        """Leave the answer without an end, so that nobody takes what came for the whole."""
        IS_CUT_OFF.set(True)
        log.info("gateway.cut_off", error=type(error).__name__, door=self._door.name)

    async def _refuse(self, error: DoorError, send: Send) -> None:
        if self._has_begun:
            self._cut_off(error)
            return
        self.status = error.status
        # Neither the error's frames nor the budget have the body while the client reads the answer.
        error.__traceback__ = None
        self._hold.give_back()
        self._services.metrics.refused.labels(self._door.name, error.status).inc()
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.warning("gateway.refused", door=self._door.name, status=error.status, why=error.detail)
        body = error_body(self._door.shape, error.status, error.detail, error.code)
        headers = [*error_headers(body, error.retry_after), self._named_request()]
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def in_words(error: RequestError) -> DoorError:
    """Return an error of a use case as an error of a door."""
    return DoorError(status_of(error), error.detail, code=error.code, retry_after=error.retry_after)
