"""A parser of HTTP/1.1 requests that ignores offers to change the protocol, as RFC 9110 (7.8) allows.

httptools stops at the head of a request with `Upgrade` and `Connection: upgrade` (`websocket`, or `h2c`, which Java's
client offers with its first request). What follows is the body; read as a request, it would be one that no proxy
in front has seen. So the head is parsed again without the offer, and the body as the head frames it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import httptools

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class RequestEvents(Protocol):
        """What a parser reports to, and what of a head it has reported."""

        url: bytes
        headers: list[tuple[bytes, bytes]]


class PlainRequestParser:
    """Parses requests as httptools does. `is_offer` is true while it reports a head that it will report again."""

    def __init__(self, events: RequestEvents) -> None:
        self._events = events
        self._begin()

    def _begin(self) -> None:
        self._parser = _new_parser(self._events)
        self.get_method = self._parser.get_method
        self.get_http_version = self._parser.get_http_version
        self.should_keep_alive = self._parser.should_keep_alive

    @property
    def is_offer(self) -> bool:
        """Whether the request whose head has just come offers another protocol."""
        return self._parser.should_upgrade()

    def should_upgrade(self) -> bool:
        """Return False: no protocol is changed here."""
        return False

    def feed_data(self, data: bytes) -> None:
        """Parse what came. Raises HttpParserError for what is no request, and for CONNECT."""
        while True:
            try:
                return self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                method = self._parser.get_method()
                if method == b"CONNECT":
                    raise httptools.HttpParserError("CONNECT is for proxies") from None
                version = self._parser.get_http_version()
                head = _head(method, self._events.url, version, self._events.headers)
                data = head + data[offer.args[0] :]
                # Another one, as this one takes a connection for closed that the request does not keep.
                self._begin()


def _new_parser(events: RequestEvents) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(events)
    # As uvicorn has it: the answer to a request that ends the connection is sent whatever comes after it.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def _head(method: bytes, url: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    lines = [b"%b %b HTTP/%b" % (method, url, version.encode())]
    lines += [b"%b: %b" % header for header in headers if header[0] != b"upgrade"]
    return b"\r\n".join([*lines, b"", b""])
