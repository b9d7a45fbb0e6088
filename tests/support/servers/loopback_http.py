"""The HTTP side of `LoopbackModel`: connections, requests as they arrive, and what a step can answer with."""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from tests.support.messages_api import problems
from tests.support.servers.loopback_chat import CHAT, completion, error_body, is_chat, too_long
from tests.support.servers.loopback_chat import refused as refused_chat
from tests.support.servers.loopback_compaction import compacted, is_compaction, refused
from tests.support.servers.loopback_steps import CHARS_PER_TOKEN, ERROR_TYPES, Step, prompt_too_long, status, strings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.servers.loopback_model import LoopbackModel

MESSAGES: Final = "/v1/messages"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"


@dataclass
class Received:
    """One request as it arrived; `answered` is set when its handling is over, however it ended."""

    index: int
    path: str
    headers: dict[str, str]
    raw: bytes
    body: Any
    status: int | None = None
    answered: threading.Event = field(default_factory=threading.Event)

    @property
    def prompt(self) -> str:
        """Every text the model would read, system prompt first, one per line."""
        if not isinstance(self.body, dict):
            return ""
        messages = self.body.get("messages") or []
        parts = [self.body.get("system"), *(m.get("content") for m in messages if isinstance(m, dict))]
        return "\n".join(text for part in parts for text in strings(part))

    @property
    def input_tokens(self) -> int:
        """Characters of system prompt, tools and messages / 4."""
        seen = [self.body.get(key) for key in ("system", "tools", "messages")]
        return max(1, len(json.dumps(seen, ensure_ascii=False)) // CHARS_PER_TOKEN)


class Answering(BaseHTTPRequestHandler):
    """Handles one connection; what a step is given to answer with."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server
    received: Received

    @property
    def model(self) -> LoopbackModel:
        return self.server.model

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {key.lower(): value for key, value in self.headers.items()}
        path = self.path.partition("?")[0]
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        self.received = Received(-1, path, headers, raw, body)
        unscripted = self._unscripted()
        turn = self.model.admit(self.received, scripted=unscripted is None)
        if turn is self.model.default and is_compaction(self.received):
            turn = compacted()
        try:
            if unscripted is None:
                self.model.pass_gate()
            self.model.closing.wait(self.model.latency)
            if self.model.closing.is_set():
                self.cut()
            else:
                (unscripted or turn)(self)
        except OSError:
            self.close_connection = True
        finally:
            self.model.finished(self.received)

    def do_GET(self) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.received = Received(-1, self.path.partition("?")[0], headers, b"", None)
        status(404)(self)

    def _unscripted(self) -> Step | None:
        """Return what the API itself answers, whatever the script says; None if the script has its turn."""
        received, limit = self.received, self.model.context_tokens
        if received.path not in {MESSAGES, COUNT_TOKENS, CHAT}:
            return status(404)
        if not {"x-api-key", "authorization"} & set(received.headers):
            return status(401, "x-api-key header is required")
        if is_chat(received):
            return self._unscripted_chat(limit)
        return self._unscripted_message(limit)

    def _unscripted_message(self, limit: int | None) -> Step | None:
        received = self.received
        if reason := self._invalid():
            return status(400, reason)
        if received.path == COUNT_TOKENS:
            return lambda answering: answering.json(200, {"input_tokens": received.input_tokens})
        if limit and received.input_tokens > limit:
            return prompt_too_long(received.input_tokens, limit)
        return None

    def _unscripted_chat(self, limit: int | None) -> Step | None:
        received = self.received
        refusal = refused_chat(received, self.model.dialect) if self.model.validate else None
        if refusal is None and limit and received.input_tokens > limit:
            return too_long(received.input_tokens, limit)
        return refusal

    def _invalid(self) -> str | None:
        body = self.received.body
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            return "messages: field required"
        if not self.model.validate:
            return None
        needed = ("model",) if self.received.path == COUNT_TOKENS else ("model", "max_tokens")
        for name in needed:
            if not body.get(name):
                return f"{name}: field required"
        if "anthropic-version" not in self.received.headers:
            return "anthropic-version: header is required"
        return next(iter(problems(body["messages"])), None) or refused(self.received)

    def message(
        self,
        content: list[dict[str, Any]],
        stop_reason: str,
        output_tokens: int | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return a whole Message object for the request at hand; output tokens default to characters / 4."""
        chars = sum(len(text) for text in strings(content))
        usage = {
            "input_tokens": self.received.input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": max(1, chars // CHARS_PER_TOKEN) if output_tokens is None else output_tokens,
            "service_tier": "standard",
        }
        return {
            "id": f"msg_loopback_{self.received.index:06d}",
            "type": "message",
            "role": "assistant",
            "model": self.received.body.get("model", "unnamed"),
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": usage,
        } | dict(changes or {})

    def answer(self, message: dict[str, Any]) -> None:
        """Send a Message object, as events where they were asked for."""
        if is_chat(self.received) or not self.received.body.get("stream"):
            return self.json(200, self.encoded(message))
        events = b"".join(
            f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in _events(message)
        )
        return self.whole(200, events, {"content-type": "text/event-stream"})

    def encoded(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a Message object in the shape of the API that was called."""
        received = self.received
        return completion(message, received.body, received.index) if is_chat(received) else message

    def error(
        self, code: int, text: str, error_type: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send an error object; its type follows from the status unless given."""
        if is_chat(self.received):
            return self.json(code, error_body(code, text, error_type), headers)
        error = {"type": error_type or ERROR_TYPES.get(code, "api_error"), "message": text}
        return self.json(code, {"type": "error", "error": error, "request_id": self.request_id}, headers)

    @property
    def request_id(self) -> str:
        return f"req_loopback_{self.received.index:06d}"

    def json(self, code: int, payload: object, headers: Mapping[str, str] | None = None) -> None:
        self.whole(code, json.dumps(payload).encode(), headers)

    def whole(self, code: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send status, headers and body in one write."""
        self.wfile.write(self.head(code, len(body), headers) + body)

    def head(self, code: int, length: int, headers: Mapping[str, str] | None = None) -> bytes:
        """Return the status line and headers, and note the status."""
        self.received.status = code
        sent = {
            "content-type": "application/json",
            "content-length": str(length),
            "x-request-id" if is_chat(self.received) else "request-id": self.request_id,
        } | dict(headers or {})
        if sent.get("connection") == "close":
            self.close_connection = True
        lines = [f"HTTP/1.1 {code} Loopback", *(f"{key}: {value}" for key, value in sent.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def wait_on(self, event: threading.Event) -> None:
        """Block until `event` is set; raises ConnectionAbortedError when the server closes first."""
        self.model.wait_on(event)
        if self.model.closing.is_set():
            raise ConnectionAbortedError

    def cut(self, *, reset: bool = False) -> None:
        """End the connection, with a reset instead of a close if wanted."""
        self.close_connection = True
        if reset:
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing: the requests are recorded."""


class Server(ThreadingHTTPServer):
    """Knows its open connections, so that `finish` leaves neither a socket nor a thread."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], model: LoopbackModel) -> None:
        self.model = model
        self._open: set[socket.socket] = set()
        self._idle = threading.Condition()
        super().__init__(address, Answering)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._idle:
            self._open.add(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._idle:
                self._open.discard(request)
                self._idle.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that left is not an error
            super().handle_error(request, client_address)

    def finish(self) -> None:
        self.server_close()
        with self._idle:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue
            if not self._idle.wait_for(lambda: not self._open, timeout=10):
                raise RuntimeError(f"{len(self._open)} connections did not end")


def _events(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a message as the API streams it, each block in one piece."""
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    for index, block in enumerate(message["content"]):
        if block["type"] == "tool_use":
            begun = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        else:
            begun, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        yield {"type": "content_block_start", "index": index, "content_block": begun}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
    yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": message["usage"]["output_tokens"]}}
    yield {"type": "message_stop"}
