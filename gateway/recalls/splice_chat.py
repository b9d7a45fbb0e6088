"""Answers of Chat Completions as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.answers.chat import ChatAnswer
from gateway.answers.events import DONE, encode_event
from gateway.recalls.calls import is_recall
from gateway.recalls.splice import Splice, sum_usage

if TYPE_CHECKING:
    from gateway.answers.events import StreamEvent

_ENDS_WITH_CALLS: Final = frozenset({"tool_calls", "stop", "function_call"})
"""Finish reasons of an answer with calls. Some servers use that of an answer without."""
_BETWEEN: Final = "\n\n"
"""Separates the texts of two rounds, which are one string for the client."""


class ChatSplice(Splice):
    """Texts and calls of several answers in one."""

    answer = ChatAnswer

    def __init__(self) -> None:
        super().__init__()
        self._head: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._is_between = False
        self._has_text = False

    def next_round(self) -> None:
        """Start the round after recall."""
        super().next_round()
        self._is_between = self._has_text

    def rewrite_event(self, event: StreamEvent, value: dict[str, Any]) -> bytes:
        """Return the client's bytes of a chunk."""
        self.said.event(value)
        choices = value.get("choices") or []
        if not choices:
            return self._rewrite_usage(event, value)
        choice = choices[0]
        delta, stop = choice.get("delta") or {}, choice.get("finish_reason")
        visible = self._delta(delta)
        if stop:
            self.goes_on = bool(self.hidden) and not self.has_own_calls and stop in _ENDS_WITH_CALLS
        self._head = self._head or {name: value[name] for name in value if name not in {"choices", "usage"}}
        if not self.round and visible == delta and not (stop and self.goes_on):
            self.shown.event(value)
            return event.raw
        is_held = bool(stop) and self.goes_on
        if not any(visible.values()) and (is_held or not stop):
            return b""
        choice = {**choice, "delta": visible, "finish_reason": None if is_held else stop}
        usage = {"usage": sum_usage(self.usage, value["usage"])} if value.get("usage") and not is_held else {}
        return self._show({**value, **usage, "choices": [choice]})

    def thinking_events(self, words: str) -> bytes:
        """Return a piece of reasoning."""
        choice = {"index": 0, "delta": {"reasoning_content": words}, "finish_reason": None}
        return self._show({"choices": [choice]})

    def closing_events(self) -> bytes:
        """Return the chunks that end an answer."""
        usage = {"usage": sum_usage(self.usage, self.said.usage)} if self.said.usage else {}
        choice = {"index": 0, "delta": {}, "finish_reason": "stop"}
        return self._show({"choices": [choice], **usage}) + b"data: " + DONE + b"\n\n"

    def error_event(self, body: Any) -> bytes:
        """Return the provider's error as it comes within a stream."""
        error = body.get("error") if isinstance(body, dict) else None
        return encode_event({"error": error or {"message": "The provider did not go on.", "type": "server_error"}})

    def add_whole(self, body: dict[str, Any], words: str = "") -> None:
        """Add a completion."""
        self._thoughts += [words] if words else []
        self.said.whole(body)
        self._head, self._last = self._head or body, body
        choice = body["choices"][0]
        message = choice["message"]
        every = message.get("tool_calls") or []
        self._calls = [call for call in every if not is_recall("chat", call)]
        self.has_own_calls = bool(self._calls)
        self.hidden = set(range(len(self._calls), len(every)))
        self._texts += [text] if (text := message.get("content")) else []
        self._thoughts += [thought] if (thought := message.get("reasoning_content")) else []
        stop = choice.get("finish_reason")
        self.goes_on = bool(self.hidden) and not self.has_own_calls and stop in _ENDS_WITH_CALLS

    def combined_body(self) -> dict[str, Any]:
        """Return one completion."""
        choice = self._last["choices"][0]
        message = {name: value for name, value in choice["message"].items() if name != "tool_calls"}
        message["content"] = _BETWEEN.join(self._texts) or None
        message |= {"reasoning_content": "".join(self._thoughts)} if self._thoughts else {}
        message |= {"tool_calls": self._calls} if self._calls else {}
        stop = "stop" if self.goes_on else choice.get("finish_reason")
        usage = sum_usage(self.usage, self.said.usage)
        choices = [{**choice, "message": message, "finish_reason": stop}]
        one = {**self._last, "id": self._head.get("id"), "choices": choices, **({"usage": usage} if usage else {})}
        self.shown.whole(one)
        return one

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        """Return the client's form of a delta. It is the same object if nothing changes."""
        visible = dict(delta)
        if self.round:
            visible.pop("role", None)
        if delta.get("content"):
            self._has_text = True
            if self._is_between:
                visible["content"] = _BETWEEN + delta["content"]
                self._is_between = False
        if delta.get("tool_calls"):
            calls = []
            for call in delta["tool_calls"]:
                index = call.get("index", 0)
                if index not in self.places and is_recall("chat", call):
                    self.hidden.add(index)
                if index not in self.hidden:
                    self.has_own_calls = True
                    place = self.place_of(index)
                    calls.append(call if place == index else {**call, "index": place})
            visible["tool_calls"] = calls
            if not calls:
                del visible["tool_calls"]
        return visible

    def _rewrite_usage(self, event: StreamEvent, value: dict[str, Any]) -> bytes:
        if self.goes_on:
            return b""
        if not self.round:
            self.shown.event(value)
            return event.raw
        return self._show({**value, "usage": sum_usage(self.usage, value.get("usage"))})

    def _show(self, value: dict[str, Any]) -> bytes:
        value = {**value, **self._head}
        self.shown.event(value)
        return encode_event(value)
