"""Requests that offer another protocol are read as HTTP/1.1, body included, however their bytes come: API, gateway."""

from __future__ import annotations

import json
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pytest

from tests.conftest import make_tenant
from tests.gateway.conftest import room_on
from tests.support.service.running_api import running_api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.settings import Settings
    from tests.conftest import Tenant
    from tests.gateway.conftest import Room

SECONDS: Final = 20
OFFERS: Final = {
    "h2c": ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"),
    "h2c that closes": ("Upgrade: h2c", "Connection: close, upgrade"),
    "websocket": (
        "Connection: keep-alive, Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ),
    "two headers": ("Connection: keep-alive", "Connection: upgrade", "upgrade: TLS/1.0", "Upgrade: h2c"),
}
SMUGGLED: Final = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"


class Server:
    """An address, and a request that it answers with 2xx if it gets the body."""

    def __init__(self, url: str, key: str, path: str, body: bytes) -> None:
        self.url, self.key, self.path, self.body = url, key, path, body

    def request(self, *lines: str, body: bytes, is_chunked: bool = False) -> bytes:
        framing = "transfer-encoding: chunked" if is_chunked else f"content-length: {len(body)}"
        head = [f"POST {self.path} HTTP/1.1", "host: x", f"authorization: Bearer {self.key}", *lines, framing]
        if is_chunked:
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        return "\r\n".join([*head, "", ""]).encode() + body

    @contextmanager
    def connected(self) -> Iterator[socket.socket]:
        place = urlsplit(self.url)
        with socket.create_connection((place.hostname or "", place.port or 0), timeout=SECONDS) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield connection


@pytest.fixture(scope="module")
def module_tenant(module_settings: Settings) -> Tenant:
    return make_tenant(module_settings.database_url.get_secret_value(), "offering")


@pytest.fixture(scope="module")
def gateway_room(module_settings: Settings, module_tenant: Tenant) -> Iterator[Room]:
    with room_on(module_settings, module_tenant) as room:
        yield room


@pytest.fixture(scope="module", params=["api", "gateway"])
def server(request: pytest.FixtureRequest, module_settings: Settings, module_tenant: Tenant) -> Iterator[Server]:
    if request.param == "gateway":
        room: Room = request.getfixturevalue("gateway_room")
        body = json.dumps({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "offered"}]})
        yield Server(room.gateway.url, room.tenant.key, "/v1/messages", body.encode())
        return
    with running_api(module_settings) as api:
        yield Server(api.url, module_tenant.key, "/v1/conversations", b'{"metadata":{"as":"offered"}}')


def statuses(connection: socket.socket, count: int) -> list[int]:
    """Return the statuses of the next answers."""
    received = b""
    found: list[int] = []
    while len(found) < count:
        head, end, rest = received.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        if end and len(rest) >= length:
            found.append(int(head.split()[1]))
            received = rest[length:]
            continue
        piece = connection.recv(65_536)
        if not piece:
            break
        received += piece
    return found


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("offer", OFFERS)
def test_a_request_with_an_offer_keeps_its_body(server: Server, offer: str, is_chunked: bool) -> None:
    asked = server.request(*OFFERS[offer], body=server.body, is_chunked=is_chunked)
    with server.connected() as connection:
        connection.sendall(asked)
        assert statuses(connection, 1)[0] in {200, 201}


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_is_no_request_wherever_the_packets_end(server: Server, is_chunked: bool) -> None:
    asked = server.request(*OFFERS["h2c"], body=SMUGGLED, is_chunked=is_chunked)
    after = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    for cut in range(1, len(asked), 3):
        with server.connected() as connection:
            connection.sendall(asked[:cut])
            connection.sendall(asked[cut:] + after)
            # One is no JSON, the other is the request that comes after it: nothing answers what is in the body.
            assert statuses(connection, 2) == [400, 200], cut


def test_offers_one_after_the_other_on_a_connection(server: Server) -> None:
    asked = server.request(*OFFERS["h2c"], body=server.body)
    with server.connected() as connection:
        connection.sendall(asked * 5)
        assert set(statuses(connection, 5)) <= {200, 201}


@pytest.mark.parametrize(
    "framing",
    [
        ["transfer-encoding: gzip, chunked"],
        ["transfer-encoding: gzip", "transfer-encoding: chunked"],
        ["transfer-encoding: chunked", "transfer-encoding: chunked"],
        ["transfer-encoding: identity"],
    ],
)
def test_transfer_codings_besides_chunked_are_refused(server: Server, framing: list[str]) -> None:
    head = [f"POST {server.path} HTTP/1.1", "host: x", f"authorization: Bearer {server.key}", *framing]
    with server.connected() as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode() + b"1d\r\n" + server.body[:29] + b"\r\n0\r\n\r\n")
        assert statuses(connection, 2) == [400]


def test_http_1_0_has_no_transfer_codings(server: Server) -> None:
    head = [f"POST {server.path} HTTP/1.0", "host: x", f"authorization: Bearer {server.key}"]
    with server.connected() as connection:
        connection.sendall("\r\n".join([*head, "transfer-encoding: chunked", "", ""]).encode() + b"0\r\n\r\n")
        assert statuses(connection, 2) == [400]


def test_connect_ends_the_connection(server: Server) -> None:
    with server.connected() as connection:
        connection.sendall(b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n" + SMUGGLED)
        assert statuses(connection, 2) == [400]
