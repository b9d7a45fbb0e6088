"""One request, from its first byte to its answer's last: admitted, read, prepared, sent, relayed, stored."""

from __future__ import annotations

import time
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

import structlog

from actions.caller import Caller
from gateway.bodies import GoneError, read_body, until_gone
from gateway.doors import DoorError, error_body, error_headers
from gateway.headers import CODING, REQUEST, outgoing
from gateway.providers.answers import CutOffError
from gateway.request.call import ProviderCall
from gateway.request.prepare import prepare
from gateway.request.relay import AnswerRelay, AnswerWriter
from runtime import ids
from runtime.errors import RequestError
from runtime.held_bytes import HeldBytes
from runtime.http.access_log import AccessLog
from runtime.http.problem_documents import status_of

if TYPE_CHECKING:
    from uuid import UUID

    from litestar.types import Receive, Send

    from gateway.callers import Known
    from gateway.doors import Door, Headers
    from gateway.providers.answers import ProviderAnswer
    from gateway.request.values import PreparedRequest
    from gateway.services import GatewayServices

log = structlog.get_logger()


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
        self._caller: Caller | None = None
        self._began = 0.0

    async def run(self, receive: Receive, send: Send) -> None:
        """Answer the request."""
        patience = self._services.settings.gateway_reader_seconds
        writer = AnswerWriter(send, self._door, patience_seconds=patience)
        started = time.perf_counter()
        try:
            await self._run(receive, writer)
        except DoorError as error:
            await self._refuse(error, writer)
        except RequestError as error:
            await self._refuse(_as_door_error(error), writer)
        except (CutOffError, GoneError) as error:
            if self._began:
                writer.cut_off(error)
        finally:
            self._hold.give_back()
            tenant_id = None if self._caller is None else self._caller.tenant_id
            access_log = AccessLog(self._services.settings.access_log)
            access_log.add(self._method, self._door.name, writer.status, time.perf_counter() - started, tenant_id)

    async def _run(self, receive: Receive, writer: AnswerWriter) -> None:
        """Answer the request. Raises DoorError, RequestError, CutOffError and GoneError for what ends it early."""
        settings = self._services.settings
        known = await self._services.callers.of(self._named)
        self._caller = await self._admit(known)
        body, is_decoded = await read_body(
            receive,
            self._named,
            self._hold,
            most=settings.gateway_max_body_bytes,
            seconds=settings.gateway_reader_seconds,
        )
        self._began = time.perf_counter()
        if is_decoded:
            del self._named[CODING]
            self._headers = [(name, value) for name, value in self._headers if name != CODING]
        passing = self._pass_on(known, body, writer)
        del body
        # A client that goes away takes its call with it.
        async with until_gone(receive):
            await passing

    async def _admit(self, known: Known) -> Caller | None:
        """Return the caller of a request that is within its rate limits; None for one that nobody can name now."""
        if known.principal is None:
            return None
        self._hold.belong_to(known.principal.tenant_id)
        core = self._services.core
        if core.rate_limits.is_on:
            await core.rate_limits.check(known.principal)
        return Caller(core, known.principal, self._request_id, self._hold)

    async def _pass_on(self, known: Known, body: bytes, writer: AnswerWriter) -> None:
        services, caller, door = self._services, self._caller, self._door
        with services.metrics.under_way.track_inprogress():
            prepared = await prepare(services, caller, door, self._named, body)
            del body
            called = await ProviderCall(services, caller, door, self._named, partial(self._send, known)).answer(
                prepared
            )
            relay = AnswerRelay(services, door, caller, self._hold, partial(self._ask, known))
            try:
                headers = [*relay.begin(called), self._request_header()]
                # What was sent is not kept in memory while the answer comes.
                del prepared, called
                await relay.run(headers, writer)
            finally:
                relay.close()

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

    def _request_header(self) -> tuple[bytes, bytes]:
        """Return the header with the request's id."""
        return REQUEST, ids.external("req", self._request_id).encode()

    async def _refuse(self, error: DoorError, writer: AnswerWriter) -> None:
        if writer.status:
            writer.cut_off(error)
            return
        # Neither the error's frames nor the budget have the body while the client reads the answer.
        error.__traceback__ = None
        self._hold.give_back()
        self._services.metrics.refused.labels(self._door.name, error.status).inc()
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.warning("gateway.refused", door=self._door.name, status=error.status, why=error.detail)
        body = error_body(self._door.shape, error.status, error.detail, error.code)
        await writer.begin(error.status, [*error_headers(body, error.retry_after), self._request_header()])
        await writer.end(body)


def _as_door_error(error: RequestError) -> DoorError:
    """Return an error of a use case as an error of a door."""
    return DoorError(status_of(error), error.detail, code=error.code, retry_after=error.retry_after)
