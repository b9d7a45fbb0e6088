"""Calls of providers, on connections that are kept."""

from __future__ import annotations

import asyncio
import socket
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import httpx2

from gateway.doors import DoorError
from gateway.providers.answers import CutOffError
from gateway.providers.connection import Connection
from gateway.providers.proxied import ProxiedCalls, is_proxied

if TYPE_CHECKING:
    import ssl

    from gateway.doors import Door, Headers
    from gateway.providers.answers import ProviderAnswer
    from gateway.providers.upstreams import Provider
    from runtime.settings import Settings

CONNECT_SECONDS: Final = 10.0
"""Seconds for a connection to a provider."""
ADDRESS_SECONDS: Final = 1.0
"""Of these for one address of several: there are networks in which those of IPv6 lead nowhere."""
KEPT_SECONDS: Final = 4.5
"""Seconds that a connection is kept for the next call; servers of models close theirs after 5."""
MOST_KEPT: Final = 200
"""Connections to one provider that are kept."""


class Target(NamedTuple):
    """Where a call goes."""

    url: str
    host: str
    port: int
    is_tls: bool
    netloc: bytes
    path: bytes
    """With the query."""
    is_proxied: bool


@lru_cache(maxsize=256)
def target_of(url: str) -> Target:
    """Return where a URL leads, written as it is sent."""
    parsed = httpx2.URL(url)
    is_tls = parsed.scheme == "https"
    port = parsed.port or (443 if is_tls else 80)
    host = parsed.raw_host.decode()
    # Credentials in a URL are the general client's too.
    apart = bool(parsed.userinfo) or is_proxied(parsed.scheme, host)
    return Target(url, host, port, is_tls, parsed.netloc, parsed.raw_path, apart)


class ProviderCalls:
    """Calls of providers."""

    def __init__(self, settings: Settings) -> None:
        self._seconds = settings.gateway_upstream_seconds
        self._proxied = ProxiedCalls(self._seconds, CONNECT_SECONDS)
        self._kept: dict[tuple[str, int, bool], list[Connection]] = {}
        self._authorities: ssl.SSLContext | None = None

    async def send(
        self, method: str, provider: Provider, door: Door, query: bytes, headers: Headers, body: bytes
    ) -> ProviderAnswer:
        """Return the answer of a provider, its body still to come. Raises DoorError if there is none."""
        target = target_of(provider.url + door.end + (f"?{query.decode('latin-1')}" if query else ""))
        headers = [(b"host", target.netloc), *headers]
        try:
            if target.is_proxied:
                return await self._proxied.send(method, target.url, headers, body)
            connection = self._kept_one(target) or await self._connected(target)
            head = _head(method, target.path, headers)
            sent = body if method == "POST" else b""
            return await connection.ask(head, sent, is_head=method == "HEAD", seconds=self._seconds)
        except TimeoutError:
            raise DoorError(504, "The provider did not answer in time.") from None
        except OSError as error:
            raise _not_reached(type(error).__name__) from None
        except CutOffError as error:
            raise _not_reached(str(error)) from None

    async def close(self) -> None:
        """Close every connection that is kept."""
        for connections in self._kept.values():
            while connections:
                _take(connections).close()
        await self._proxied.close()

    def _kept_one(self, target: Target) -> Connection | None:
        connections = self._kept.get(target[1:4])
        while connections:
            connection = _take(connections)
            if connection.is_open:
                return connection
        return None

    async def _connected(self, target: Target) -> Connection:
        origin = target[1:4]
        context = await self._context() if target.is_tls else None
        async with asyncio.timeout(CONNECT_SECONDS):
            connected = await _connected_socket(target.host, target.port)
            try:
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(lambda ended: self._keep(origin, ended)),
                    sock=connected,
                    ssl=context,
                    server_hostname=target.host if context is not None else None,
                )
            except BaseException:
                connected.close()
                raise
        return connection

    def _keep(self, origin: tuple[str, int, bool], connection: Connection) -> None:
        connections = self._kept.setdefault(origin, [])
        if len(connections) >= MOST_KEPT:
            return connection.close()
        connections.append(connection)
        connection.expiry = asyncio.get_running_loop().call_later(KEPT_SECONDS, _expire, connections, connection)
        return None

    async def _context(self) -> ssl.SSLContext:
        if self._authorities is None:
            context = await asyncio.to_thread(httpx2.create_ssl_context)
            context.set_alpn_protocols(["http/1.1"])
            self._authorities = context
        return self._authorities


def _take(connections: list[Connection]) -> Connection:
    """Return the connection that was used last."""
    connection = connections.pop()
    if connection.expiry is not None:
        connection.expiry.cancel()
        connection.expiry = None
    return connection


def _expire(connections: list[Connection], connection: Connection) -> None:
    connections.remove(connection)
    connection.close()


async def _connected_socket(host: str, port: int) -> socket.socket:
    """Return a connection to the first address of a host that takes one. Raises OSError, and TimeoutError."""
    loop = asyncio.get_running_loop()
    every = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, address) in enumerate(every, start=1):
        connecting = socket.socket(family, kind, protocol)
        try:
            connecting.setblocking(False)
            connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(ADDRESS_SECONDS if number < len(every) else None):
                await loop.sock_connect(connecting, address)
        except OSError:
            connecting.close()
            if number == len(every):
                raise
        except BaseException:
            connecting.close()
            raise
        else:
            return connecting
    raise OSError("no address")


def _head(method: str, path: bytes, headers: Headers) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (method.encode(), path), *(b"%b: %b" % header for header in headers)]
    head = b"\r\n".join(lines)
    if head.count(b"\n") >= len(lines) or head.count(b"\r") >= len(lines) or b"\0" in head:
        raise CutOffError("a header of several lines")
    return head + b"\r\n\r\n"


def _not_reached(why: str) -> DoorError:
    return DoorError(502, f"The provider can't be reached: {why}.")
