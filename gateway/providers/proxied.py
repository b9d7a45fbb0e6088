"""Calls of providers by way of the proxy that the environment names, by a general client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from urllib.request import getproxies, proxy_bypass

import httpx2

from gateway.providers.answers import CutOffError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.doors import Headers

_PIECE_BYTES: Final = 256 * 1024


def is_proxied(scheme: str, host: str) -> bool:
    """Tell whether the environment has a proxy for a host (`HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`)."""
    proxies = getproxies()
    return (scheme in proxies or "all" in proxies) and not proxy_bypass(host)


class ProxiedCalls:
    """A general client, made when it is needed first."""

    def __init__(self, seconds: float, connect_seconds: float) -> None:
        self._timeout = httpx2.Timeout(seconds, connect=connect_seconds, pool=connect_seconds)
        self._client: httpx2.AsyncClient | None = None

    async def send(self, method: str, url: str, headers: Headers, body: bytes) -> _ProxiedAnswer:
        """Return the answer to a request, its body still to come. Raises CutOffError, and TimeoutError."""
        if self._client is None:
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=200)
            self._client = httpx2.AsyncClient(timeout=self._timeout, limits=limits, follow_redirects=False)
        stream = _Body(body)
        request = httpx2.Request(method, url, stream=stream)
        request.headers = httpx2.Headers(headers)
        try:
            return _ProxiedAnswer(await self._client.send(request, stream=True))
        except httpx2.TimeoutException:
            raise TimeoutError from None
        except httpx2.HTTPError as error:
            raise CutOffError(type(error).__name__) from None
        finally:
            stream.let_go()

    async def close(self) -> None:
        """Close every connection."""
        if self._client is not None:
            await self._client.aclose()


class _Body(httpx2.AsyncByteStream):
    """A body that is let go of once it is sent, however long the answer takes."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = self._body or b""
        for start in range(0, len(body), _PIECE_BYTES):
            yield body[start : start + _PIECE_BYTES]

    def let_go(self) -> None:
        self._body = None


class _ProxiedAnswer:
    """An answer of the general client's."""

    def __init__(self, response: httpx2.Response) -> None:
        self.status = response.status_code
        self.headers: Headers = [(name.lower(), value) for name, value in response.headers.raw]
        self._response = response
        self._closing: asyncio.Task[None] | None = None

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes; raise CutOffError where its end is missing."""
        try:
            async for piece in self._response.aiter_raw():
                yield piece
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise CutOffError(type(error).__name__) from None

    def close(self) -> None:
        """End the call."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._response.aclose())
