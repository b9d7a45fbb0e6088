"""A client that keeps its own history and sends the whole of it with every request, as they all do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tests.support.servers.loopback_providers import Says

if TYPE_CHECKING:
    from tests.gateway.conftest import Room

PATHS: Final = {"messages": "/v1/messages", "chat": "/v1/chat/completions", "responses": "/v1/responses"}


class Chatter:
    """A client of one shape, and one conversation of it."""

    def __init__(self, room: Room, shape: str, **headers: str) -> None:
        self.room = room
        self.shape = shape
        self.headers = headers
        self.fields: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []
        self.name = ""
        self.outcome = ""
        self.saved = 0
        self.rules: str | None = None
        """The hash over the rules, where the answer has one."""
        self.called = ""
        """Id of the newest call."""

    def ask(self, text: Any, *, stream: bool = True) -> None:
        """Ask something new."""
        self.rows.append({"role": "user", "content": text})
        self.send(stream=stream)

    def give(self, identifier: str, result: str) -> None:
        """Add a tool's result."""
        match self.shape:
            case "messages":
                block = {"type": "tool_result", "tool_use_id": identifier, "content": result}
                self.rows.append({"role": "user", "content": [block]})
            case "chat":
                self.rows.append({"role": "tool", "tool_call_id": identifier, "content": result})
            case _:
                self.rows.append({"type": "function_call_output", "call_id": identifier, "output": result})

    def send(self, *, stream: bool = True, rows: list[Any] | None = None) -> None:
        """Send the history as it stands, or as a client writes it; take the answer into it."""
        number = len(self.room.providers.asked)
        name = "input" if self.shape == "responses" else "messages"
        body = {"model": "model-1", "max_tokens": 99, name: rows or self.rows, "stream": stream, **self.fields}
        answer = self.room.client.post(PATHS[self.shape], json=body, headers=self.headers)
        assert answer.status_code == 200, answer.text
        self.name = answer.headers.get("x-palimpsest-conversation", "")
        self.outcome = answer.headers["x-palimpsest-outcome"]
        self.saved = int(answer.headers["x-palimpsest-saved-tokens"])
        self.rules = answer.headers.get("x-palimpsest-rules")
        says = self.room.providers.model(self.room.providers.asked[number])
        assert isinstance(says, Says)
        self.rows += self.answer(says)
        self.called = says.calls[-1][0] if says.calls else ""

    def answer(self, says: Says) -> list[dict[str, Any]]:
        """Return an answer as a client keeps it, without what the provider put beside it."""
        match self.shape:
            case "messages":
                texts = [{"type": "text", "text": says.text}] if says.text else []
                calls = [{"type": "tool_use", "id": i, "name": n, "input": given} for i, n, given in says.calls]
                return [{"role": "assistant", "content": [*texts, *calls]}]
            case "chat":
                called = [
                    {"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(given)}}
                    for i, n, given in says.calls
                ]
                answer: dict[str, Any] = {"role": "assistant", "content": says.text or None}
                return [{**answer, **({"tool_calls": called} if called else {})}]
        items: list[dict[str, Any]] = []
        if says.text:
            said = [{"type": "output_text", "text": says.text}]
            items.append({"type": "message", "role": "assistant", "content": said})
        return items + [
            {"type": "function_call", "call_id": i, "name": n, "arguments": json.dumps(given)}
            for i, n, given in says.calls
        ]
