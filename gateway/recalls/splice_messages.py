"""Answers of the Messages API as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.answers.events import encode_event
from gateway.answers.messages import MessagesAnswer
from gateway.recalls.calls import is_recall
from gateway.recalls.splice import Splice, sum_usage
from gateway.recalls.thoughts import SIGNATURE

if TYPE_CHECKING:
    from gateway.answers.events import StreamEvent

_CALLED: Final = frozenset({"tool_use"})


class MessagesSplice(Splice):
    """Blocks of several messages in one."""

    answer = MessagesAnswer

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._content: list[dict[str, Any]] = []
        self._ended: dict[str, Any] = {}

    def rewrite_event(self, event: StreamEvent, value: dict[str, Any]) -> bytes:
        """Return the client's bytes of an event."""
        self.said.event(value)
        kind, index = value.get("type"), value.get("index")
        if index is not None:
            return self._block(event, value, index)
        if kind == "message_delta":
            self._end(value)
        if self.goes_on or (kind == "message_start" and self.round):
            return b""
        if kind == "message_delta" and self.round:
            return self._show({**value, "usage": sum_usage(self.usage, self.said.usage)})
        self.shown.event(value)
        return event.raw

    def _block(self, event: StreamEvent, value: dict[str, Any], index: int) -> bytes:
        if value["type"] == "content_block_start":
            block = value["content_block"]
            if is_recall("messages", block):
                self.hidden.add(index)
            elif block.get("type") in _CALLED:
                self.has_own_calls = True
        if index in self.hidden:
            return b""
        place = self.place_of(index)
        if place != index:
            return self._show({**value, "index": place})
        self.shown.event(value)
        return event.raw

    def _end(self, value: dict[str, Any]) -> None:
        self._ended = value
        is_called = value["delta"].get("stop_reason") in _CALLED
        self.goes_on = is_called and bool(self.hidden) and not self.has_own_calls

    def thinking_events(self, words: str) -> bytes:
        """Return a block of thinking."""
        index = self.next_place
        self.next_place += 1
        begun = {"type": "thinking", "thinking": "", "signature": ""}
        said = [{"type": "thinking_delta", "thinking": words}, {"type": "signature_delta", "signature": SIGNATURE}]
        deltas = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in said]
        start = {"type": "content_block_start", "index": index, "content_block": begun}
        return b"".join(map(self._show, [start, *deltas, {"type": "content_block_stop", "index": index}]))

    def closing_events(self) -> bytes:
        """Return the events that end a message."""
        usage = sum_usage(self.usage, self.said.usage)
        ended = {**self._ended, "delta": {**self._ended["delta"], "stop_reason": "end_turn"}, "usage": usage}
        return self._show(ended) + self._show({"type": "message_stop"})

    def error_event(self, body: Any) -> bytes:
        """Return the provider's error as it comes within a stream."""
        error = body.get("error") if isinstance(body, dict) else None
        unknown = {"type": "api_error", "message": "The provider did not go on."}
        return encode_event({"type": "error", "error": error or unknown}, name="error")

    def add_whole(self, body: dict[str, Any], words: str = "") -> None:
        """Add a message."""
        if words:
            self._content.append({"type": "thinking", "thinking": words, "signature": SIGNATURE})
        self.said.whole(body)
        self._first, self._last = self._first or body, body
        every = body["content"]
        own = [block for block in every if not is_recall("messages", block)]
        self._content += own
        self.has_own_calls = any(block.get("type") in _CALLED for block in own)
        self.hidden = set(range(len(own), len(every)))
        self.goes_on = bool(self.hidden) and not self.has_own_calls and body.get("stop_reason") in _CALLED

    def combined_body(self) -> dict[str, Any]:
        """Return one message."""
        usage = sum_usage(self.usage, self.said.usage)
        stop = {"stop_reason": "end_turn"} if self.goes_on else {}
        one = {**self._last, "id": self._first.get("id"), "content": self._content, "usage": usage, **stop}
        self.shown.whole(one)
        return one

    def _show(self, value: dict[str, Any]) -> bytes:
        self.shown.event(value)
        return encode_event(value, name=str(value["type"]))
