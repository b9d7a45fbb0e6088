"""Providers of all three shapes on loopback: what a model is asked is kept, what it answers is what a test says.

Streams come in the events of the providers' references. An answer is a function from a request's body to what the model
says: a text, or a call of a tool with what goes into it.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from tests.support.threaded_http import QuietHandler, ThreadedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PIECES: Final = 3
"""Pieces of a text in a stream."""


class Says(NamedTuple):
    """What a model answers."""

    text: str = ""
    calls: tuple[tuple[str, str, dict[str, Any]], ...] = ()
    """Id, name, input."""
    thinks: str = ""


class Fails(NamedTuple):
    """An error of the provider's."""

    status: int
    body: dict[str, Any]
    within: bool = False
    """Whether it comes within a stream of the Responses API, after it has begun."""


class Sends(NamedTuple):
    """A body that a provider, or a proxy before it, sends as it is."""

    status: int
    media_type: str
    body: bytes


Answer = Says | Fails | Sends


@dataclass
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    raw: bytes
    body: Any
    answered: bytes = b""
    is_cut: bool = False
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def rows(self) -> list[Any]:
        """The messages or items of it."""
        rows: list[Any] = self.body["input"] if "input" in self.body else self.body["messages"]
        return rows


class LoopbackProviders:
    """One server for all doors; `url` is the base URL of Anthropic's SDK, `openai_url` that of OpenAI's."""

    def __init__(self, model: Callable[[Asked], Answer] | None = None) -> None:
        self.model = model or (lambda asked: Says(f"answer {len(asked.rows)}"))
        self.asked: list[Asked] = []
        self.closing = threading.Event()
        self.hold_after: int | None = None
        """Pieces of a stream after which it waits for `go_on`; None = never."""
        self.held = threading.Event()
        self.go_on = threading.Event()
        self.cut_after: int | None = None
        """Pieces of a stream after which the connection breaks."""
        self._server = _Server(self)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.go_on.set()
        self._server.__exit__()


class _Server(ThreadedServer):
    request_queue_size = 1_024
    block_on_close = False

    def __init__(self, providers: LoopbackProviders) -> None:
        self.providers = providers
        super().__init__(_Handler)


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        self._answer(self.read_body())

    def do_GET(self) -> None:
        self._answer(b"")

    def _answer(self, raw: bytes) -> None:
        path, _, query = self.path.partition("?")
        headers = {key.lower(): value for key, value in self.headers.items()}
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = None
        asked = Asked(self.command, path, query, headers, raw, body)
        self.server.providers.asked.append(asked)
        try:
            self._say(asked)
        except OSError:
            asked.is_cut = True
            self.close_connection = True
        finally:
            asked.ended.set()

    def _say(self, asked: Asked) -> None:
        if asked.path == "/v1/models":
            return self._whole(asked, 200, {"data": [{"id": "model-1"}], "object": "list"})
        if asked.path == "/v1/messages/count_tokens":
            return self._whole(asked, 200, {"input_tokens": len(asked.raw) // 4})
        shape = SHAPES.get(asked.path)
        if shape is None or asked.body is None:
            return self._whole(asked, 400, {"error": {"type": "invalid_request_error", "message": "not understood"}})
        says = self.server.providers.model(asked)
        number = len(self.server.providers.asked)
        if isinstance(says, Sends | Fails):
            return self._send_body(asked, says) if isinstance(says, Sends) else self._refuse(asked, says, number)
        message, events = shape(asked, says, number)
        if not asked.body.get("stream"):
            return self._whole(asked, 200, message)
        return self._stream(asked, events)

    def _refuse(self, asked: Asked, says: Fails, number: int) -> None:
        if not says.within:
            return self._whole(asked, says.status, says.body)
        _, events = _responses(asked, Says(), number)
        failed = {"id": f"resp_{number}", "object": "response", "status": "failed", "output": [], **says.body}
        value = {"type": "response.failed", "response": failed, "sequence_number": 2}
        return self._stream(asked, [*events[:2], _event(value, "response.failed")])

    def _whole(self, asked: Asked, status: int, value: Mapping[str, Any]) -> None:
        self._send_body(asked, Sends(status, "application/json", json.dumps(value).encode()))

    def _send_body(self, asked: Asked, sends: Sends) -> None:
        asked.answered = sends.body
        self.send_response_only(sends.status)
        self.send_header("content-type", sends.media_type)
        self.send_header("content-length", str(len(asked.answered)))
        self.send_header("request-id", "req_of_the_provider")
        self.end_headers()
        self.wfile.write(asked.answered)

    def _stream(self, asked: Asked, events: list[bytes]) -> None:
        providers = self.server.providers
        self.send_response_only(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number, event in enumerate(events):
            if number == providers.hold_after:
                providers.held.set()
                self._wait_or_notice_its_end()
            if number == providers.cut_after:
                self.close_connection = True
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            asked.answered += event
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _wait_or_notice_its_end(self) -> None:
        self.connection.settimeout(0.02)
        while not self.server.providers.go_on.is_set():
            try:
                if self.connection.recv(1) == b"":
                    raise ConnectionAbortedError
            except TimeoutError:
                continue
        self.connection.settimeout(None)


def _pieces(text: str) -> list[str]:
    size = max(1, len(text) // PIECES + 1)
    return [text[start : start + size] for start in range(0, len(text), size)]


def _event(value: Mapping[str, Any], name: str | None = None) -> bytes:
    return (f"event: {name}\n" if name else "").encode() + f"data: {json.dumps(value)}\n\n".encode()


def _messages(asked: Asked, says: Says, number: int) -> tuple[dict[str, Any], list[bytes]]:
    blocks: list[dict[str, Any]] = []
    if says.thinks:
        blocks.append({"type": "thinking", "thinking": says.thinks, "signature": "c2lnbmVk"})
    if says.text:
        blocks.append({"type": "text", "text": says.text, "citations": None})
    blocks += [{"type": "tool_use", "id": i, "name": n, "input": given} for i, n, given in says.calls]
    usage = {"input_tokens": len(asked.raw) // 4, "output_tokens": 20, "cache_read_input_tokens": 0}
    stop = "tool_use" if says.calls else "end_turn"
    message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": asked.body.get("model"),
               "content": blocks, "stop_reason": stop, "stop_sequence": None, "usage": usage}  # fmt: skip
    begun = {**message, "content": [], "stop_reason": None}
    events = [_event({"type": "message_start", "message": begun}, "message_start"), b": a comment\n\n"]
    for index, block in enumerate(blocks):
        empty = {**block, **({"input": {}} if "input" in block else {}), **({"text": ""} if "text" in block else {})}
        if "thinking" in block:
            empty = {"type": "thinking", "thinking": "", "signature": ""}
        events.append(_event({"type": "content_block_start", "index": index, "content_block": empty}))
        deltas: list[dict[str, Any]] = []
        if "text" in block:
            deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
        elif "thinking" in block:
            deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        else:
            given = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in _pieces(given)]
        events += [_event({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas]
        events.append(_event({"type": "content_block_stop", "index": index}))
    ended = {"stop_reason": stop, "stop_sequence": None}
    events.append(_event({"type": "message_delta", "delta": ended, "usage": {"output_tokens": 20}}))
    return message, [*events, _event({"type": "message_stop"}, "message_stop")]


def _chat(asked: Asked, says: Says, number: int) -> tuple[dict[str, Any], list[bytes]]:
    calls = [
        {"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(given)}}
        for i, n, given in says.calls
    ]
    message: dict[str, Any] = {"role": "assistant", "content": says.text or None, "refusal": None, "annotations": []}
    message |= {"tool_calls": calls} if calls else {}
    message |= {"reasoning_content": says.thinks} if says.thinks else {}
    usage = {"prompt_tokens": len(asked.raw) // 4, "completion_tokens": 20, "total_tokens": len(asked.raw) // 4 + 20}
    stop = "tool_calls" if calls else "stop"
    head = {"id": f"chatcmpl-{number}", "object": "chat.completion", "created": 1, "model": asked.body.get("model")}
    whole = {**head, "choices": [{"index": 0, "message": message, "finish_reason": stop}], "usage": usage}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for piece in _pieces(says.thinks)]
    deltas += [{"content": piece} for piece in _pieces(says.text)]
    for index, call in enumerate(calls):
        function: Any = call["function"]
        begun = {"index": index, "id": call["id"], "type": "function"}
        deltas.append({"tool_calls": [{**begun, "function": {"name": function["name"], "arguments": ""}}]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in _pieces(function["arguments"])
        ]
    head["object"] = "chat.completion.chunk"
    events = [_event({**head, "choices": [{"index": 0, "delta": d, "finish_reason": None}]}) for d in deltas]
    events.append(_event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": stop}]}))
    if (asked.body.get("stream_options") or {}).get("include_usage"):
        events.append(_event({**head, "choices": [], "usage": usage}))
    return whole, [*events, b"data: [DONE]\n\n"]


def _responses(asked: Asked, says: Says, number: int) -> tuple[dict[str, Any], list[bytes]]:
    items: list[dict[str, Any]] = []
    if says.thinks:
        items.append({"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": "c2VhbGVk"})
    if says.text:
        said = {"type": "output_text", "text": says.text, "annotations": []}
        items.append({"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed",
                      "content": [said]})  # fmt: skip
    for identifier, name, given in says.calls:
        items.append({"type": "function_call", "id": f"fc_{identifier}", "call_id": identifier, "name": name,
                      "arguments": json.dumps(given), "status": "completed"})  # fmt: skip
    tokens = len(asked.raw) // 4
    usage = {"input_tokens": tokens, "output_tokens": 20, "total_tokens": tokens + 20,
             "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {}}  # fmt: skip
    whole = {"id": f"resp_{number}", "object": "response", "created_at": 1, "status": "completed",
             "model": asked.body.get("model"), "output": items, "usage": usage, "parallel_tool_calls": True,
             "tool_choice": "auto", "tools": [], "error": None, "incomplete_details": None,
             "instructions": None, "metadata": {}, "temperature": 1.0, "top_p": 1.0}  # fmt: skip
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    named: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    named.append({"type": "response.in_progress", "response": begun})
    for index, item in enumerate(items):
        named.append({"type": "response.output_item.added", "output_index": index, "item": {**item, "content": []}})
        if item["type"] == "message":
            named += [
                {"type": "response.output_text.delta", "output_index": index, "content_index": 0,
                 "item_id": item["id"], "delta": piece, "logprobs": []}
                for piece in _pieces(says.text)
            ]  # fmt: skip
        named.append({"type": "response.output_item.done", "output_index": index, "item": item})
    named.append({"type": "response.completed", "response": whole})
    return whole, [_event({**each, "sequence_number": at}, each["type"]) for at, each in enumerate(named)]


SHAPES: Final = {"/v1/messages": _messages, "/v1/chat/completions": _chat, "/v1/responses": _responses}
