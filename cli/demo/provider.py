"""A provider of the Messages API on the loopback interface: the demo's story answers, and what arrives is counted."""

from __future__ import annotations

import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from cli.installation.accounting import Ledger, tokens_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType


class ReceivedRequest(NamedTuple):
    """One request as it arrived."""

    bytes: int
    tokens: int
    """System prompt, tools and messages, by characters / 4."""
    messages: int


class StoryProvider:
    """The server; a context manager. What comes next in the story answers whoever sends what came before it last."""

    def __init__(self, story: Sequence[Any]) -> None:
        self.received: list[ReceivedRequest] = []
        self._answers = {_key(asked): answer for asked, answer in pairwise(story) if asked["role"] == "user"}
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                status, answer = outer.answer(self.rfile.read(int(self.headers["content-length"])))
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing: what arrives is counted."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, raw: bytes) -> tuple[HTTPStatus, dict[str, Any]]:
        """Count a request; return the status and the body of its answer, a refusal for what is not of the story."""
        body = json.loads(raw)
        messages = body["messages"]
        answer = self._answers.get(_key(messages[-1]))
        if answer is None:
            error = {"type": "invalid_request_error", "message": "The newest message is none of the story's."}
            return HTTPStatus.BAD_REQUEST, {"type": "error", "error": error}
        tokens = Ledger.of(body["system"], body["tools"]).fixed_tokens + sum(map(tokens_of, messages))
        with self._lock:
            self.received.append(ReceivedRequest(len(raw), tokens, len(messages)))
        calls = any(block["type"] == "tool_use" for block in answer["content"])
        return HTTPStatus.OK, {
            "id": f"msg_{len(self.received):04}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": answer["content"],
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": tokens, "output_tokens": tokens_of(answer)},
        }


def _key(message: Any) -> str:
    return json.dumps(message, sort_keys=True)
