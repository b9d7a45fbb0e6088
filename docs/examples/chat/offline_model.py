"""A model for a machine without an API key: it speaks the streaming Messages API, and has little to say."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

_calls = count(1)


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Answer a streaming request for a message."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for event in _events(body):
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Say nothing."""


def _events(body: dict[str, Any]) -> list[dict[str, Any]]:
    block, deltas, reason = _reply(body["messages"])
    tokens = len(json.dumps(body)) // 4
    message = {"id": f"msg_{next(_calls)}", "type": "message", "role": "assistant", "model": body["model"]}
    empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
    return [
        {"type": "message_start", "message": message | empty | {"usage": {"input_tokens": tokens, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": 20 * len(deltas)},
        },
        {"type": "message_stop"},
    ]


def _reply(messages: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """Return a block without its content, what fills it, and why it ends."""
    content = messages[-1]["content"]
    if isinstance(content, list) and content[-1]["type"] == "tool_result":
        result = str(content[-1]["content"])
        text = f"The log has {len(result.splitlines())} lines, {result.count('WARN')} of them warnings."
    else:
        said = content if isinstance(content, str) else content[-1].get("text", "")
        if "log" in said.lower():
            call = {"type": "tool_use", "id": f"toolu_{next(_calls)}", "name": "read_log", "input": {}}
            given = json.dumps({"service": said.split()[-1].strip("?.") or "checkout"})
            return call, [{"type": "input_json_delta", "partial_json": given}], "tool_use"
        text = f'I have read {len(messages)} messages; you said "{said[:200]}". Ask me to read a log.'
    return (
        {"type": "text", "text": ""},
        [{"type": "text_delta", "text": f"{word} "} for word in text.split()],
        "end_turn",
    )


def start() -> str:
    """Serve on a free port of this machine; return the address for the SDK."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"
