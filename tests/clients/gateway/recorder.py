"""What stands between a client and the gateway: it keeps what goes each way, and has done before what is due."""

from __future__ import annotations

import http.client
import json
import threading
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from tests.clients.every_api_model import PATHS
from tests.support.threaded_http import QuietHandler, ThreadedServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from http.server import BaseHTTPRequestHandler

NUMBER: Final = "exchange"
"""In the query, by which a request is told again at the model."""
_ABOUT_THE_CONNECTION: Final = {
    "host",
    "connection",
    "transfer-encoding",
    "content-length",
    "keep-alive",
    "date",
    "server",
}
_SECONDS: Final = 120


@dataclass
class Exchange:
    """A request as the client sent it, and what it was answered."""

    number: int
    path: str
    headers: dict[str, str]
    body: Any
    status: int = 0
    said: dict[str, str] = field(default_factory=dict)
    """Headers of the answer."""
    answered: bytes = b""

    @property
    def shape(self) -> str:
        """The API's; empty for none whose history is answered."""
        return PATHS.get(self.path, "")

    @property
    def rows(self) -> list[Any]:
        """Its messages or items."""
        rows: Any = self.body["input" if self.shape == "responses" else "messages"]
        return rows if isinstance(rows, list) else [{"role": "user", "content": rows}]

    @property
    def conversation(self) -> str:
        """The conversation that the gateway says it is."""
        return self.said.get("x-palimpsest-conversation", "")

    @property
    def outcome(self) -> str:
        """What the gateway says that it did."""
        return self.said.get("x-palimpsest-outcome", "")


class Recorder:
    """The server; a context manager. before: is called before a request goes on, with the conversations so far."""

    def __init__(self, gateway: str, before: Callable[[list[str]], None]) -> None:
        self.exchanges: list[Exchange] = []
        self._address = urlsplit(gateway).netloc
        self._before = before
        self._numbers = count(1)
        self._lock = threading.Lock()
        outer = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                outer.pass_on(self)

            def do_HEAD(self) -> None:
                outer.pass_on(self)

            def do_POST(self) -> None:
                outer.pass_on(self)

        self._server = ThreadedServer(Handler)

    @property
    def url(self) -> str:
        """The base URL that clients are given."""
        return self._server.url

    @property
    def asked(self) -> list[Exchange]:
        """What was answered of a model."""
        return [each for each in self.exchanges if each.shape and each.status == http.HTTPStatus.OK]

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    def pass_on(self, handler: BaseHTTPRequestHandler) -> None:
        """Pass a request on to the gateway, and its answer back as it comes."""
        raw = _body(handler)
        path, _, query = handler.path.partition("?")
        headers = {name.lower(): value for name, value in handler.headers.items()}
        with self._lock:
            exchange = Exchange(next(self._numbers), path, headers, _value(raw))
            # One after the other: a conversation is compacted between two requests, not during one.
            self._before(list(dict.fromkeys(each.conversation for each in self.exchanges if each.conversation)))
            self.exchanges.append(exchange)
        query = "&".join(part for part in (query, f"{NUMBER}={exchange.number}") if part)
        connection = http.client.HTTPConnection(self._address, timeout=_SECONDS)
        kept = {name: value for name, value in headers.items() if name not in _ABOUT_THE_CONNECTION}
        connection.request(handler.command, f"{path}?{query}", raw or None, kept)
        with connection.getresponse() as answer:
            exchange.said = {name.lower(): value for name, value in answer.getheaders()}
            handler.send_response_only(answer.status)
            for name, value in exchange.said.items():
                if name not in _ABOUT_THE_CONNECTION:
                    handler.send_header(name, value)
            handler.send_header("transfer-encoding", "chunked")
            handler.end_headers()
            if handler.command != "HEAD":
                while piece := answer.read1():
                    exchange.answered += piece
                    handler.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                handler.wfile.write(b"0\r\n\r\n")
            exchange.status = answer.status
        connection.close()


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    if handler.headers.get("transfer-encoding", "").lower() != "chunked":
        return handler.rfile.read(int(handler.headers.get("content-length") or 0))
    parts = []
    while size := int(handler.rfile.readline().split(b";")[0], 16):
        parts.append(handler.rfile.read(size))
        handler.rfile.readline()
    handler.rfile.readline()
    return b"".join(parts)


def _value(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None
