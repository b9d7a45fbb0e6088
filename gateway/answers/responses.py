"""An answer of the Responses API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENDS: Final = frozenset({"response.completed", "response.incomplete"})


class ResponsesAnswer:
    """The items of a response, from events or whole."""

    def __init__(self) -> None:
        self.is_whole = False
        self.usage: dict[str, Any] | None = None
        self._items: dict[int, Any] = {}
        self._said: dict[int, list[str]] = {}
        """Texts of incomplete messages."""

    def event(self, event: Mapping[str, Any]) -> None:
        """Process an event."""
        match event.get("type"):
            case "response.output_text.delta":
                self._said.setdefault(event["output_index"], []).append(event["delta"])
            case "response.output_item.done":
                self._items[event["output_index"]] = event["item"]
                self._said.pop(event["output_index"], None)
            case str(kind) if kind in _ENDS:
                self._end(event["response"])

    def whole(self, body: Mapping[str, Any]) -> None:
        """Process a response. Raises ValueError for a failed one."""
        if body.get("status") in {"failed", "cancelled", "queued", "in_progress"}:
            raise ValueError(body["status"])
        self._end(body)

    def rows(self) -> list[Any]:
        """Return the items. A truncated message has the text so far."""
        parts = {index: "".join(said) for index, said in self._said.items()}
        begun = {
            index: {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
            for index, text in parts.items()
            if text.strip()
        }
        every = {**begun, **self._items}
        return [every[index] for index in sorted(every)]

    def _end(self, response: Mapping[str, Any]) -> None:
        if output := response.get("output"):
            self._items = dict(enumerate(output))
            self._said.clear()
        self.usage = response.get("usage")
        self.is_whole = True
