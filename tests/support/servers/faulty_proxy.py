"""A proxy before the API that breaks some calls: answers that never arrive, and those of something in between."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from typing import TYPE_CHECKING, Literal, NamedTuple, Union

import httpx2

from tests.support.threaded_http import QuietHandler, ThreadedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "host"}


class Refused(NamedTuple):
    """An answer that is given instead of the service's."""

    status: int
    headers: dict[str, str]
    body: bytes = b""


class Seen(NamedTuple):
    """A request that came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Fault = Union[Refused, Literal["lose", "drop", "trickle"], "Callable[[], object]"]
"""`lose`: the service does it, the answer never arrives. `drop`: the service never sees it. `trickle`: an
answer comes byte by byte and has no end. A function: it is called, and then the request passed on."""


class FaultyProxy(ThreadedServer):
    """Passes requests on; the next ones meet what is in `faults`, and all of them while `always` says so."""

    def __init__(self, url: str) -> None:
        super().__init__(_Handler)
        self.upstream = httpx2.Client(base_url=url, timeout=30)
        self.faults: deque[Fault | None] = deque()
        self.always: Fault | None = None
        self.seen: list[Seen] = []
        self.closing = threading.Event()

    def then(self, *faults: Fault | None) -> None:
        """Let the next requests meet these; None = nothing."""
        self.faults.extend(faults)


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def _pass_on(self) -> None:
        body = self.read_body()
        headers = {name.lower(): value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        self.server.seen.append(Seen(self.command, self.path, headers, body))
        fault = self.server.faults.popleft() if self.server.faults else self.server.always
        if fault == "drop":
            return self._hang_up()
        if fault == "trickle":
            return self._trickle()
        if isinstance(fault, Refused):
            return self._reply(fault.status, fault.headers, fault.body)
        if callable(fault):
            fault()
        headers["accept-encoding"] = "identity"
        answer = self.server.upstream.request(self.command, self.path, headers=headers, content=body)
        if fault == "lose":
            return self._hang_up()
        return self._reply(answer.status_code, dict(answer.headers), answer.content)

    def _reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _trickle(self) -> None:
        self.close_connection = True
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            while not self.server.closing.wait(0.02):
                self.wfile.write(b" ")

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    do_GET = do_POST = do_PATCH = do_DELETE = _pass_on  # noqa: N815 - the base's names


@contextlib.contextmanager
def faulty_proxy(url: str) -> Iterator[FaultyProxy]:
    """Run a proxy before a server."""
    with FaultyProxy(url) as proxy, proxy.upstream:
        try:
            yield proxy
        finally:
            proxy.closing.set()
