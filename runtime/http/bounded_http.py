"""HTTP on a connection, with a bound on what comes before a body: the parser that uvicorn uses has none of its own."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NoReturn

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from runtime import ids
from runtime.errors import RequestError
from runtime.http.pace import WAITING_HEADS, ReaderPace
from runtime.http.plain_parser import PlainRequestParser
from runtime.http.problem_documents import document_of, status_of
from runtime.http.security_headers import SecurityHeaders
from runtime.http.unread_bodies import IDLE_SECONDS as IDLE_DRAIN_SECONDS

if TYPE_CHECKING:
    import asyncio
    from typing import Any

MAX_URL_BYTES: Final = 16 * 1024
"""Bytes of a request's path and query; the longest filters and cursors fit in a third of it."""
MAX_PARAMETERS: Final = 100
"""Parameters of a query; no route has a tenth of that. The framework keeps the last thousand queries that it parsed, in
which thousands of parameters would take a hundred times their bytes."""
IDLE_SECONDS: Final = 75
"""For which a connection may say nothing between two requests: longer than a proxy in front keeps one that is idle (60
seconds for nginx and for AWS's load balancers), which else sends a request into a connection that is just ending."""
MAX_PIPELINED: Final = 64
"""Requests that a connection may send ahead of their answers: they are kept before anybody asks who they are from."""
_SECURITY: Final = "".join(f"{name.decode()}: {value.decode()}\r\n" for name, value in SecurityHeaders().of(()))


class _RefusedError(Exception):
    """A request whose head is not taken; httptools ends the parsing with it."""


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol; a head of more than `h11_max_incomplete_event_size` bytes, or no HTTP, is a problem document.

    The name of that setting of uvicorn is what its other parser calls the same limit.
    """

    _most = 0
    _head_bytes = 0
    """Of the URL and of the name and value of each header so far, trailers included."""
    _new_head_bytes = 0
    """Those of them that the newest piece of data brought to an end."""
    _other_bytes = 0
    """What else came since a body's last part: punctuation, and a header that the parser keeps until it ends."""
    _body_came = False
    _head_is_whole = False
    _is_refused = False
    _waits_for_head = False
    _refusal: RequestError | None = None
    parser: PlainRequestParser  # type: ignore[assignment] # in the place of uvicorn's

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = PlainRequestParser(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
        """Begin with a connection."""
        super().connection_made(transport)
        self._most = int(self.config.h11_max_incomplete_event_size or 0)
        self._reader = ReaderPace(transport, self.loop)
        self._address = self.client[0] if self.client else ""
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End with a connection."""
        self._reader.stop()
        WAITING_HEADS.discard(self._address, self.transport)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the client to take what is written, but not for good."""
        super().pause_writing()
        self._reader.pause()

    def resume_writing(self) -> None:
        """Go on."""
        super().resume_writing()
        self._reader.resume()

    def _wait_for_head(self) -> None:
        self._waits_for_head = True
        WAITING_HEADS.add(self._address, self.transport, self.loop)

    def data_received(self, data: bytes) -> None:
        """Parse what came, and count it unless it is a body's."""
        if self._is_refused:
            # In flight when the request was refused: unread it would reset the connection, and the answer with it.
            return
        self._new_head_bytes, self._body_came = 0, False
        super().data_received(data)
        if self._head_is_whole:
            if self._waits_for_head:
                self._waits_for_head = False
                WAITING_HEADS.discard(self._address, self.transport)
        elif not self._waits_for_head and not self.transport.is_closing():
            self._wait_for_head()
        self._other_bytes = 0 if self._body_came else self._other_bytes + len(data) - self._new_head_bytes
        if self._head_bytes + self._other_bytes > self._most and not (self._is_refused or self.transport.is_closing()):
            self._refuse_head()
            self.send_400_response("")

    def on_message_begin(self) -> None:
        """Begin to count."""
        super().on_message_begin()
        self._head_is_whole = False
        self._head_bytes = self._new_head_bytes = self._other_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            self._refusal = RequestError("url_too_long", f"A URL has at most {MAX_URL_BYTES:,} bytes.")
            raise _RefusedError
        if self.url.count(b"&") >= MAX_PARAMETERS:
            self._refusal = RequestError("url_too_long", f"A URL has at most {MAX_PARAMETERS} parameters.")
            raise _RefusedError
        self._grow(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; a trailer is none, whatever its name (RFC 9110, 6.5.1)."""
        self._grow(len(name) + len(value))
        if not self._head_is_whole:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin a request, or have it wait for the answers to those before it."""
        if self.parser.is_offer:
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refuse(f"At most {MAX_PIPELINED} requests are sent ahead of their answers.")
        if [name for name, _ in self.headers].count(b"host") > 1:
            # What is in front may have gone by the other one (RFC 9112, 3.2).
            self._refuse("A request has one Host header.")
        self._check_framing()
        self._head_is_whole = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End a request, unless its head is parsed again."""
        if not self.parser.is_offer:
            super().on_message_complete()

    def _check_framing(self) -> None:
        """Refuse a body in a coding besides `chunked`, and one of HTTP/1.0 with any (RFC 9112, 6.1)."""
        codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if not codings:
            return
        if codings != [b"chunked"]:
            self._refuse("The only transfer coding that is read here is chunked.")
        if self.parser.get_http_version() == "1.0":
            self._refuse("A request of HTTP/1.0 has no transfer coding.")

    def on_body(self, body: bytes) -> None:
        """Take a part of a body; the application counts these."""
        self._body_came = True
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request, or too large a one, and close the connection."""
        error = self._refusal or RequestError("bad_request", msg)
        name = ids.external("req", ids.new_id())
        status = status_of(error)
        body = document_of(error, name)
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
            f"content-type: application/problem+json\r\ncontent-length: {len(body)}\r\n"
            f"request-id: {name}\r\n{_SECURITY}connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        if self.cycle is not None and not self.cycle.response_complete:
            # No answer to an earlier request comes after this one.
            self.transport.close()
            return
        self._is_refused = True
        self.loop.call_later(IDLE_DRAIN_SECONDS, self.transport.close)

    def _grow(self, size: int) -> None:
        self._head_bytes += size
        self._new_head_bytes += size
        if self._head_bytes > self._most:
            self._refuse_head()
            raise _RefusedError

    def _refuse(self, detail: str) -> NoReturn:
        self._refusal = RequestError("bad_request", detail)
        raise _RefusedError

    def _refuse_head(self) -> None:
        detail = f"A request's line and headers have at most {self._most:,} bytes."
        self._refusal = RequestError("head_too_large", detail)
