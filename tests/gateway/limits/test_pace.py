"""Clients that send or read slowly, and those with many connections, hold what others need for a bounded time."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest

from runtime import held_bytes
from runtime.held_bytes import KEPT_FREE, MAX_BODIES, SHARE, BusyError, BytesUnderWay, HeldBytes
from runtime.http import pace
from runtime.http.pace import ReaderPace
from tests.conftest import make_tenants
from tests.gateway.conftest import room_on
from tests.support.eventually import eventually
from tests.support.service.running_api import running_api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.settings import Settings

MB: Final = 1 << 20
SECONDS: Final = 30


class Server:
    """A server, what its requests hold, a path that takes a body, and keys of two tenants."""

    def __init__(self, url: str, under_way: BytesUnderWay, path: str, keys: tuple[str, str]) -> None:
        self.url, self.under_way, self.path, self.keys = url, under_way, path, keys

    def send(self, stack: ExitStack, key: str, size: int, sent: int) -> socket.socket:
        """Begin a request, and leave it unfinished."""
        place = urlsplit(self.url)
        connection = stack.enter_context(socket.create_connection((place.hostname or "", place.port or 0), SECONDS))
        head = f"POST {self.path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: {size}\r\n\r\n"
        connection.sendall(head.encode() + b" " * sent)
        return connection


@pytest.fixture(scope="module", params=["api", "gateway"])
def server(request: pytest.FixtureRequest, module_settings: Settings) -> Iterator[Server]:
    url = module_settings.database_url.get_secret_value()
    hostile, other = make_tenants(url, f"slow {request.param}", f"other {request.param}")
    keys = (hostile.key, other.key)
    if request.param == "gateway":
        with room_on(module_settings, other) as room:
            app: Any = room.gateway.server.config.app
            yield Server(room.gateway.url, app._services.under_way, "/v1/messages", keys)
        return
    with running_api(module_settings) as api:
        app = api.server.config.app
        yield Server(api.url, app.state.services.under_way, "/v1/conversations", keys)


@pytest.mark.parametrize("figure", ["GRACE_SECONDS", "BODY_SECONDS"])
def test_a_body_that_trickles_ends(server: Server, monkeypatch: pytest.MonkeyPatch, figure: str) -> None:
    monkeypatch.setattr(pace, figure, 1.0)
    with ExitStack() as stack:
        connection = server.send(stack, server.keys[0], 10_000, 10)
        connection.settimeout(0.1)
        began, answer = time.monotonic(), b""
        while not answer and time.monotonic() - began < SECONDS:
            try:
                connection.sendall(b" ")
                answer = connection.recv(65_536)
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408 ")
    eventually(lambda: server.under_way.taken == 0)


def test_bodies_of_one_tenant_leave_others_their_share(server: Server) -> None:
    size = 257_000
    with ExitStack() as stack:
        refused = [server.send(stack, server.keys[0], size, size - 1) for _ in range(MAX_BODIES + 4)]
        eventually(lambda: any(_has_answer(each) for each in refused))
        fits = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}]}'
        if server.path == "/v1/conversations":
            fits = b'{"metadata":{}}'
        # As large as ever, of another tenant.
        last = server.send(stack, server.keys[1], 600_000 + len(fits), 600_000)
        last.sendall(fits)
        assert last.recv(65_536)[9:10] == b"2"
    eventually(lambda: server.under_way.taken == 0)
    assert not server.under_way.of_owner
    assert not server.under_way.bodies


def _has_answer(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(12, socket.MSG_PEEK).startswith(b"HTTP/1.1 503")
    except BlockingIOError:
        return False


def test_heads_that_do_not_come_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "HEAD_SECONDS", 0.5)
    place = urlsplit(server.url)
    for sent in (b"", b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-a: ", b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /"):
        with socket.create_connection((place.hostname or "", place.port or 0), timeout=SECONDS) as connection:
            connection.sendall(sent)
            with suppress(ConnectionResetError):
                while connection.recv(65_536):
                    pass


def test_the_oldest_of_too_many_waiting_connections_is_closed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "MAX_WAITING", 4)
    place = urlsplit(server.url)
    with ExitStack() as stack:
        waiting = [
            stack.enter_context(socket.create_connection((place.hostname or "", place.port or 0), timeout=SECONDS))
            for _ in range(6)
        ]
        with suppress(ConnectionResetError):
            assert waiting[0].recv(1) == b""
        waiting[-1].sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert waiting[-1].recv(65_536).startswith(b"HTTP/1.1 200 ")


def test_a_tenant_takes_no_more_than_its_share() -> None:
    under_way = BytesUnderWay(16 * MB)
    first = HeldBytes(under_way, "other")
    first.take(1)
    for _ in range(40):
        hold = HeldBytes(under_way, "hostile")
        try:
            hold.take(MB)
        except BusyError:
            break
    held = under_way.of_owner["hostile"]
    assert held <= SHARE / (SHARE + 1) * 16 * MB + MB
    HeldBytes(under_way, "other").take(3 * MB)
    small = 0
    while small < KEPT_FREE:
        try:
            HeldBytes(under_way, "hostile").take(held_bytes.SMALL_BYTES)
        except BusyError:
            break
        small += held_bytes.SMALL_BYTES
    HeldBytes(under_way, "third").take(MB // 8)


class _Transport:
    """A transport's buffer, and whether it was broken off."""

    def __init__(self) -> None:
        self.size = 0
        self.is_aborted = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        return self.size

    def abort(self) -> None:
        self.is_aborted.set()


@pytest.mark.parametrize(("taken", "ends"), [(1_000, True), (10 * MB, False)])
def test_a_reader_keeps_up_or_is_left(monkeypatch: pytest.MonkeyPatch, taken: int, ends: bool) -> None:
    monkeypatch.setattr(pace, "READER_SECONDS", 0.2)

    async def test() -> None:
        transport: Any = _Transport()
        reader = ReaderPace(transport, asyncio.get_running_loop())
        for _ in range(10):
            transport.size = taken
            reader.pause()
            await asyncio.sleep(0.05)
            transport.size = 0
            reader.resume()
        assert transport.is_aborted.is_set() == ends

    asyncio.run(test())
