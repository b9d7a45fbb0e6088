"""An answer of Chat Completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_TEXTS: Final = ("content", "refusal", "reasoning_content", "reasoning")
_AS_THEY_ARE: Final = ("role", "annotations", "audio", "function_call")


class ChatAnswer:
    """The choice of a completion, from chunks or whole. With several choices, the continued one is unknown."""

    def __init__(self) -> None:
        self.is_whole = False
        self.usage: dict[str, Any] | None = None
        self._message: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._arguments: dict[int, list[str]] = {}
        self._is_ended = False

    def event(self, event: Mapping[str, Any]) -> None:
        """Process a chunk. Raises ValueError for a second choice, and for a call of no function."""
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices") or ():
            if choice.get("index", 0):
                raise ValueError("several choices")
            self._delta(choice.get("delta") or {})
            if choice.get("finish_reason"):
                self._is_ended = self.is_whole = True

    def whole(self, body: Mapping[str, Any]) -> None:
        """Process a completion. Raises ValueError for several choices."""
        (choice,) = body["choices"]
        self._message = {name: value for name, value in choice["message"].items() if value is not None}
        self.usage = body.get("usage")
        self._is_ended = self.is_whole = True

    def rows(self) -> list[Any]:
        """Return the message. A truncated one has only its texts, because its calls may be incomplete."""
        message = dict(self._message)
        for name, parts in self._texts.items():
            message[name] = "".join(parts)
        if self._calls and self._is_ended:
            message["tool_calls"] = [self._call(index) for index in sorted(self._calls)]
        message = {name: value for name, value in message.items() if value not in ("", None, [])}
        says = set(message) & {"content", "tool_calls", "function_call", "refusal", "audio"}
        return [{"content": None, **message, "role": "assistant"}] if says else []

    def _delta(self, delta: Mapping[str, Any]) -> None:
        for name in _TEXTS:
            if isinstance(text := delta.get(name), str):
                self._texts.setdefault(name, []).append(text)
        for name in ("reasoning_details", "thinking_blocks"):
            if isinstance(parts := delta.get(name), list):
                self._message.setdefault(name, []).extend(parts)
        for name in _AS_THEY_ARE:
            if delta.get(name) is not None:
                self._message[name] = delta[name]
        for call in delta.get("tool_calls") or ():
            self._take_call(call)

    def _take_call(self, call: Mapping[str, Any]) -> None:
        if call.get("custom"):
            raise ValueError("a custom call")
        index = call.get("index", 0)
        function = call.get("function") or {}
        known = self._calls.setdefault(index, {"type": "function", "function": {}})
        known.update({name: call[name] for name in ("id", "type") if call.get(name)})
        if function.get("name"):
            known["function"]["name"] = function["name"]
        if function.get("arguments"):
            self._arguments.setdefault(index, []).append(function["arguments"])

    def _call(self, index: int) -> dict[str, Any]:
        call = self._calls[index]
        return {**call, "function": {**call["function"], "arguments": "".join(self._arguments.get(index, ()))}}
