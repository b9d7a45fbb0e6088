"""An answer of the Messages API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

_TEXTS: Final = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""Deltas whose text is added to a field of their block, and the field."""
_COMPACTED: Final = "compaction_delta"
"""The block of the API's own compaction. It comes in one piece, without content if compaction failed."""
_SEALED: Final = ("content", "encrypted_content")
_CALLS: Final = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_value: Final = msgspec.json.Decoder().decode


class MessagesAnswer:
    """One message, from events or whole."""

    def __init__(self) -> None:
        self.is_whole = False
        self.usage: dict[str, Any] | None = None
        self._blocks: dict[int, dict[str, Any]] = {}
        self._texts: dict[tuple[int, str], list[str]] = {}
        self._inputs: dict[int, list[str]] = {}
        self._citations: dict[int, list[Any]] = {}
        self._ended: set[int] = set()

    def event(self, event: Mapping[str, Any]) -> None:
        """Process an event. Raises ValueError for an unknown delta, and KeyError for one without its fields."""
        match event.get("type"):
            case "message_start":
                self.usage = dict(event["message"].get("usage") or {})
            case "content_block_start":
                self._blocks[event["index"]] = dict(event["content_block"])
            case "content_block_delta":
                self._delta(event["index"], event["delta"])
            case "content_block_stop":
                self._ended.add(event["index"])
            case "message_delta":
                counted = {name: count for name, count in (event.get("usage") or {}).items() if count is not None}
                self.usage = self.usage or {}
                self.usage.update(counted)
            case "message_stop":
                self.is_whole = True

    def whole(self, body: Mapping[str, Any]) -> None:
        """Process a message."""
        self._blocks = {index: dict(block) for index, block in enumerate(body["content"])}
        self._ended = set(self._blocks)
        self.usage = body.get("usage")
        self.is_whole = True

    def rows(self) -> list[Any]:
        """Return the message. Calls without complete input are removed from a truncated one."""
        content = [block for index in sorted(self._blocks) if (block := self._block(index)) is not None]
        return [{"role": "assistant", "content": content}] if content else []

    def _delta(self, index: int, delta: Mapping[str, Any]) -> None:
        kind = delta["type"]
        if kind == "input_json_delta":
            self._inputs.setdefault(index, []).append(delta["partial_json"])
        elif kind == "citations_delta":
            self._citations.setdefault(index, []).append(delta["citation"])
        elif kind == _COMPACTED:
            for field in _SEALED:
                if isinstance(text := delta.get(field), str):
                    self._texts.setdefault((index, field), []).append(text)
        elif kind in _TEXTS:
            field = _TEXTS[kind]
            self._texts.setdefault((index, field), []).append(delta[field])
        else:
            raise ValueError(kind)

    def _block(self, index: int) -> dict[str, Any] | None:
        block = dict(self._blocks[index])
        is_ended = index in self._ended
        if block.get("type") in _CALLS and not is_ended:
            return None
        for field in (*_TEXTS.values(), *_SEALED):
            if parts := self._texts.get((index, field)):
                block[field] = str(block.get(field) or "") + "".join(parts)
        if cited := self._citations.get(index):
            block["citations"] = [*(block.get("citations") or ()), *cited]
        if (arguments := "".join(self._inputs.get(index, ()))).strip():
            block["input"] = _value(arguments)
        if block.get("type") == "text":
            return block if str(block.get("text") or "").strip() else None
        return block if is_ended else None
