"""The providers: where they are by the settings alone, and calls of them whose bytes are passed on as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import httpx2

from gateway.doors import DoorError
from runtime import ids
from runtime.settings import Upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from uuid import UUID

    from compaction.shapes.inner import Shape
    from gateway.doors import Door, Headers
    from runtime.settings import Settings, Upstreams

CONNECT_SECONDS: Final = 10.0
"""Seconds for a connection to a provider."""
_PIECE_BYTES: Final = 256 * 1024
_ANTHROPIC: Final = "https://api.anthropic.com"
_OPENAI: Final = "https://api.openai.com/v1"


class Provider(NamedTuple):
    """Where requests of a shape go."""

    url: str
    """With the API's version, without a slash at the end."""
    key: str | None


class Providers:
    """The providers of an installation and of its tenants."""

    def __init__(self, settings: Settings) -> None:
        openai = Upstream(base_url=settings.openai_base_url or _OPENAI, api_key=settings.openai_api_key)
        usual: dict[Shape, Upstream] = {
            "messages": Upstream(
                base_url=settings.anthropic_base_url or _ANTHROPIC, api_key=settings.anthropic_api_key
            ),
            "chat": openai,
            "responses": openai,
        }
        self._all = _providers({**usual, **settings.gateway_upstreams})
        self._of_tenants = {
            tenant: {**self._all, **_providers(own)}
            for name, own in settings.gateway_tenants.items()
            if (tenant := ids.parse("ten", name)) is not None
        }

    def of(self, tenant_id: UUID | None, shape: Shape) -> Provider:
        """Return where a tenant's requests of a shape go; of nobody known, those of all."""
        return (self._of_tenants.get(tenant_id, self._all) if tenant_id else self._all)[shape]


def _providers(upstreams: Mapping[Shape, Upstream] | Upstreams) -> dict[Shape, Provider]:
    return {
        shape: Provider(
            _with_version(shape, upstream.base_url),
            upstream.api_key.get_secret_value() if upstream.api_key else None,
        )
        for shape, upstream in upstreams.items()
    }


def _with_version(shape: Shape, base_url: str) -> str:
    """Return a base URL with the version: Anthropic's SDK adds it, OpenAI's users have it in the URL."""
    if shape == "messages":
        return f"{base_url.removesuffix('/v1')}/v1"
    return base_url if urlsplit(base_url).path else f"{base_url}/v1"


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


class ProviderCalls:
    """Calls of providers, on connections that are kept."""

    def __init__(self, settings: Settings) -> None:
        seconds = settings.gateway_upstream_seconds
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(seconds, connect=CONNECT_SECONDS, pool=CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=200),
            follow_redirects=False,
        )

    async def send(
        self, method: str, provider: Provider, door: Door, query: bytes, headers: Headers, body: bytes
    ) -> httpx2.Response:
        """Return the answer of a provider, its body still to come. Raises DoorError if there is none."""
        url = provider.url + door.end + (f"?{query.decode('latin-1')}" if query else "")
        stream = _Body(body)
        request = httpx2.Request(method, url, stream=stream)
        request.headers = httpx2.Headers([(b"host", request.url.netloc), *headers])
        try:
            return await self._client.send(request, stream=True)
        except httpx2.TimeoutException:
            raise DoorError(504, "The provider did not answer in time.") from None
        except httpx2.HTTPError as error:
            raise DoorError(502, f"The provider can't be reached: {type(error).__name__}.") from None
        finally:
            stream.let_go()

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()
