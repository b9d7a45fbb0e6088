"""Calls of providers, on connections that are kept."""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx2
from multidict import CIMultiDict
from yarl import URL

from gateway.doors import DoorError
from gateway.providers.answers import CutOffError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.doors import Door, Headers
    from gateway.providers.upstreams import Provider
    from runtime.settings import Settings

CONNECT_SECONDS: Final = 10.0
"""Seconds for a connection to a provider."""
KEPT_SECONDS: Final = 4.5
"""Seconds that a connection is kept for the next call; servers of models close theirs after 5."""
PIECE_BYTES: Final = 256 * 1024
"""Bytes of a request that are sent at a time: encrypting megabytes would keep everybody waiting."""
MOST_HEADER_BYTES: Final = 256 * 1024
"""Bytes of one header of an answer."""
MOST_HEADERS: Final = 1_000
"""Headers of an answer; what stands before a provider adds its own, and limits of rate are several for each model."""
MOST_WAITING_BYTES: Final = 64 * 1024
"""Bytes of an answer that wait for their client before less is read from the provider."""
_REASONS: Final[dict[type[BaseException], str]] = {
    socket.gaierror: "no host of this name is found",
    ConnectionRefusedError: "it refuses the connection",
    ssl.SSLCertVerificationError: "its certificate is not trusted",
}
"""Why a provider can't be reached, by the kind of the error."""
_OF_THE_CLIENT: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that the HTTP client would add."""


class ProviderCalls:
    """Calls of providers."""

    def __init__(self, settings: Settings) -> None:
        self._seconds = settings.gateway_upstream_seconds
        # Those of the environment: `HTTPS_PROXY`, `ALL_PROXY`.
        self._proxies = getproxies()
        self._session: aiohttp.ClientSession | None = None
        self._authorities: ssl.SSLContext | None = None

    async def send(
        self,
        method: str,
        provider: Provider,
        door: Door,
        query: bytes,
        headers: Headers,
        body: bytes | AsyncIterator[bytes],
    ) -> CalledProvider:
        """Return the answer of a provider, its body still to come. Raises DoorError if there is none."""
        url = _url(provider.url + door.end, query)
        try:
            # A connection has its own bound; else nothing is waited for longer than for an answer to begin.
            async with asyncio.timeout(self._seconds):
                response = await self._opened().request(
                    method,
                    url,
                    headers=CIMultiDict((name.decode(), _text(value)) for name, value in headers),
                    data=_data(body),
                    allow_redirects=False,
                    proxy=self._proxy(url),
                    ssl=await self._context() if url.scheme == "https" else True,
                )
        except TimeoutError:
            raise DoorError(504, f"The provider at {_host(url)} did not answer in time.") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = f"The provider at {_host(url)} can't be reached: {_why(error)}."
            raise DoorError(502, f"{reason} The gateway's {provider.setting} says where it is.") from None
        return CalledProvider(response)

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_SECONDS),
                timeout=aiohttp.ClientTimeout(connect=CONNECT_SECONDS, sock_read=self._seconds),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=_OF_THE_CLIENT,
                read_bufsize=MOST_WAITING_BYTES,
                max_line_size=MOST_HEADER_BYTES,
                max_field_size=MOST_HEADER_BYTES,
                max_headers=MOST_HEADERS,
            )
        return self._session

    def _proxy(self, url: URL) -> str | None:
        proxy = self._proxies.get(url.scheme) or self._proxies.get("all")
        return None if proxy is None or proxy_bypass(url.host or "") else proxy

    async def _context(self) -> ssl.SSLContext:
        if self._authorities is None:
            self._authorities = await asyncio.to_thread(httpx2.create_ssl_context)
        return self._authorities


class CalledProvider:
    """What a provider answers."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.headers: Headers = [(name.lower(), value) for name, value in response.raw_headers]
        self._response = response

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes; raise CutOffError where its end is missing."""
        try:
            async for piece in self._response.content.iter_any():
                yield piece
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise CutOffError(type(error).__name__) from None

    def close(self) -> None:
        """End the call."""
        self._response.close()


def _text(value: bytes) -> str:
    """Return a header's value; the HTTP client writes text as UTF-8, which other bytes than those of UTF-8 become."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


@lru_cache(maxsize=256)
def _url(base: str, query: bytes) -> URL:
    """Return a URL whose query stays as it came."""
    return URL(base + (f"?{query.decode('latin-1')}" if query else ""), encoded=True)


def _data(body: bytes | AsyncIterator[bytes]) -> bytes | AsyncIterator[bytes] | None:
    if not isinstance(body, bytes):
        return body
    return (body if len(body) <= PIECE_BYTES else _pieces(body)) if body else None


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]


def _host(url: URL) -> str:
    """Return host and port of a provider; a login in its URL is not shown."""
    return f"{url.host}:{url.port}"


def _why(error: Exception) -> str:
    """Return why a provider can't be reached, in words for the usual reasons, else by the error's name."""
    cause = error.__cause__ or error
    return next((words for kind, words in _REASONS.items() if isinstance(cause, kind)), type(cause).__name__)
