"""Requests for other paths of the providers, relayed as they come: nothing of them is read, shortened or stored."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from gateway.bodies import GoneError, until_gone
from gateway.doors import DoorError
from gateway.exchange import PassedRequest
from gateway.headers import incoming, outgoing, said

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from litestar.types import Receive

    from gateway.callers import Known
    from gateway.providers.calls import CalledProvider
    from gateway.request.relay import AnswerWriter


class RelayedRequest(PassedRequest):
    """A request whose body and answer pass in pieces, so that files of any size take no more memory than others."""

    async def _run(self, receive: Receive, writer: AnswerWriter) -> None:
        known = await self._services.callers.of(self._named)
        self._caller = await self._admit(known)
        self._refuse_shared_list(known)
        self._began = time.perf_counter()
        upload = _Upload(receive, self._services.settings.gateway_reader_seconds)
        response: CalledProvider | None = None
        try:
            with self._services.metrics.under_way.track_inprogress():
                response = await self._relay(known, upload)
                async with AsyncExitStack() as watched:
                    if upload.is_whole:
                        # A client that goes away takes its call with it.
                        await watched.enter_async_context(until_gone(receive))
                    headers = [*incoming(response.headers), *said(None, "unchanged", 0), self._request_header()]
                    await writer.begin(response.status, headers)
                    async for piece in response.pieces():
                        await writer.write(piece)
                    await writer.end()
        except DoorError as error:
            raise upload.error or error from None
        finally:
            if response is not None:
                response.close()

    def _refuse_shared_list(self, known: Known) -> None:
        """Raise DoorError for a list of what every tenant has stored with the provider, by the key that they share."""
        tenant_id = known.principal.tenant_id if known.principal else None
        if self._door.is_list and not known.is_beside and not self._services.providers.has_own(tenant_id):
            raise DoorError(
                403,
                "This lists what all tenants have with the provider: send its own key, and yours as x-palimpsest-key.",
            )

    async def _relay(self, known: Known, upload: _Upload) -> CalledProvider:
        services = self._services
        provider = services.providers.of(known.principal.tenant_id if known.principal else None, self._door.shape)
        length = self._named.get(b"content-length", b"")
        has_body = b"transfer-encoding" in self._named or length not in (b"", b"0")
        size = int(length) if length.isdigit() else None
        if not has_body:
            upload.is_whole = True
            size = 0 if self._method == "POST" else None
        headers = outgoing(
            self._headers,
            shape=self._door.shape,
            provider_key=None if known.is_beside else provider.key or "",
            size=size,
        )
        body = upload.pieces() if has_body else b""
        response = await services.calls.send(self._method, provider, self._door, self._query, headers, body)
        services.metrics.requests.labels(self._door.name, "unchanged").inc()
        services.metrics.answers.labels(self._door.name, response.status).inc()
        return response


class _Upload:
    """The body of a request, as it comes."""

    def __init__(self, receive: Receive, seconds: float) -> None:
        self._receive = receive
        self._seconds = seconds
        self.is_whole = False
        self.error: DoorError | None = None
        """Why it was broken off."""

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body. Raises GoneError for a client that goes away, DoorError for one that sends nothing more."""
        while not self.is_whole:
            try:
                async with asyncio.timeout(self._seconds):
                    event: Any = await self._receive()
            except TimeoutError:
                self.error = DoorError(408, "The request did not come to its end in time.")
                raise self.error from None
            if event["type"] != "http.request":
                raise GoneError
            self.is_whole = not event.get("more_body", False)
            if piece := event.get("body", b""):
                yield piece
