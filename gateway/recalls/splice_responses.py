"""Answers of the Responses API as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.answers.events import encode_event
from gateway.answers.responses import ResponsesAnswer
from gateway.recalls.calls import is_recall
from gateway.recalls.splice import Splice, sum_usage
from gateway.recalls.thoughts import ITEM
from store.gateway.histories import ResponseIds

if TYPE_CHECKING:
    from gateway.answers.events import StreamEvent

_BEGINS: Final = frozenset({"response.created", "response.in_progress", "response.queued"})
_ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
_CLIENTS: Final = frozenset(
    {
        "function_call",
        "custom_tool_call",
        "computer_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "mcp_approval_request",
    }
)
"""Kinds of items that the client has to answer."""


class ResponsesSplice(Splice):
    """Items of several responses in one."""

    answer = ResponsesAnswer

    def __init__(self) -> None:
        super().__init__()
        self._id: Any = None
        self._items: list[Any] = []
        """Items shown in earlier rounds."""
        self._last: dict[str, Any] = {}
        self._sequence = 0

    @property
    def response_ids(self) -> ResponseIds | None:
        """The ids of the answer for the client and the provider."""
        last = self._last.get("id")
        return ResponseIds(self._id, last) if isinstance(self._id, str) and isinstance(last, str) else None

    def rewrite_event(self, event: StreamEvent, value: dict[str, Any]) -> bytes:
        """Return the client's bytes of an event."""
        self.said.event(value)
        kind = str(value.get("type"))
        if kind in _BEGINS:
            if self.round:
                return b""
            self._id = self._id or value["response"].get("id")
        elif kind in _ENDS:
            return self._end(event, value)
        elif kind == "response.output_item.added":
            item = value["item"]
            if is_recall("responses", item):
                self.hidden.add(value["output_index"])
            elif item.get("type") in _CLIENTS:
                self.has_own_calls = True
        index = value.get("output_index")
        if index is None:
            return self._show(event, value)
        if index in self.hidden:
            return b""
        return self._show(event, {**value, "output_index": self.place_of(index)})

    def thinking_events(self, words: str) -> bytes:
        """Return an item of reasoning."""
        index = self.next_place
        self.next_place += 1
        item = self._reasoning_item(words)
        self._items.append(item)
        at = {"item_id": item["id"], "output_index": index, "summary_index": 0}
        part = item["summary"][0]
        events: list[dict[str, Any]] = [
            {"type": "response.output_item.added", "output_index": index, "item": {**item, "summary": []}},
            {"type": "response.reasoning_summary_part.added", **at, "part": {**part, "text": ""}},
            {"type": "response.reasoning_summary_text.delta", **at, "delta": words},
            {"type": "response.reasoning_summary_text.done", **at, "text": words},
            {"type": "response.reasoning_summary_part.done", **at, "part": part},
            {"type": "response.output_item.done", "output_index": index, "item": item},
        ]
        return b"".join(self._show(None, event) for event in events)

    def closing_events(self) -> bytes:
        """Return the event that ends a response."""
        return self._show(None, {"type": "response.completed", "response": self.combined_body()})

    def error_event(self, body: Any) -> bytes:
        """Return the provider's error as it comes within a stream."""
        error = body.get("error") if isinstance(body, dict) else None
        given = error if isinstance(error, dict) else {}
        event = {
            "type": "error",
            "code": given.get("code"),
            "message": given.get("message") or "The provider did not go on.",
            "param": given.get("param"),
        }
        return self._show(None, event)

    def add_whole(self, body: dict[str, Any], words: str = "") -> None:
        """Add a response."""
        self._items += [self._reasoning_item(words)] if words else []
        self.said.whole(body)
        self._id = self._id or body.get("id")
        self._take(body)

    def combined_body(self) -> dict[str, Any]:
        """Return one response."""
        usage = sum_usage(self.usage, self.said.usage) or self._last.get("usage")
        one = {**self._last, "id": self._id, "output": self._items, "usage": usage}
        if one.get("status") not in {"failed", "cancelled"}:
            self.shown.whole(one)
        return one

    def _take(self, response: dict[str, Any]) -> None:
        """Add the response that ends a round."""
        self._last = response
        output = response.get("output") or []
        own = [item for item in output if not is_recall("responses", item)]
        self.has_own_calls = any(item.get("type") in _CLIENTS for item in own)
        self.hidden |= set(range(len(own), len(output))) if len(own) < len(output) else set()
        self._items += own
        self.goes_on = len(own) < len(output) and not self.has_own_calls and response.get("status") == "completed"

    def _end(self, event: StreamEvent, value: dict[str, Any]) -> bytes:
        response = value["response"]
        # Some providers omit earlier items from the last event.
        self._take({**response, "output": response.get("output") or self.said.rows()})
        if self.goes_on:
            return b""
        if not self.round and not self.hidden:
            return self._show(event, value)
        return self._show(None, {**value, "response": self.combined_body()})

    def _reasoning_item(self, words: str) -> dict[str, Any]:
        part = {"type": "summary_text", "text": words}
        return {"id": f"{ITEM}{self._id}_{self.round}", "type": "reasoning", "summary": [part]}

    def _show(self, event: StreamEvent | None, value: dict[str, Any]) -> bytes:
        changed = {**value, "sequence_number": self._sequence} if self.counts(event) else value
        self._sequence += 1
        if value.get("type") not in _ENDS or event is not None:
            self.shown.event(changed)
        if event is not None and changed == event.value:
            return event.raw
        return encode_event(changed, name=str(changed["type"]))

    def counts(self, event: StreamEvent | None) -> bool:
        """Return whether events are numbered, by the provider or by earlier events of the gateway."""
        self._is_counted = "sequence_number" in event.value if event and event.value else self._is_counted
        return self._is_counted

    _is_counted = True
