"""The recall tool in requests and answers of each shape: its declaration, calls and results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from compaction.recall.tool import NAME, definition
from gateway.conversations.meaning import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from compaction.shapes.inner import Shape
    from gateway.conversations.histories import ResentHistory

_FIELDS: Final = frozenset({"query", "ref", "pattern", "offset"})
"""Fields of the tool's definition."""
_value: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode
_DEFINITIONS: Final[Mapping[Shape, bytes]] = {
    "messages": _encode(definition("messages")),
    "chat": _encode(definition("chat")),
    "responses": _encode(definition("responses")),
}
"""The same bytes in every request, after the client's tools, so that the tools before them stay in the prompt cache."""


class RecallCall(NamedTuple):
    """A model's call of the tool."""

    id: str
    asked: dict[str, Any]

    @property
    def words(self) -> str:
        """The call in words, for people."""
        return str(next((self.asked[name] for name in ("query", "ref", "pattern") if name in self.asked), ""))


class AnsweredCall(NamedTuple):
    """A call with its result's text."""

    id: str
    text: str
    is_error: bool


def declare_tool(history: ResentHistory) -> ResentHistory | None:
    """Return the request with the tool declared, or None if it cannot be, or declares a tool of that name itself."""
    fields = history.fields
    if history.shape == "chat" and ("functions" in fields or bytes(fields.get("n", b"1")) not in {b"1", b"null"}):
        return None
    tools = bytes(fields.get("tools", b"null")).strip()
    if tools == b"null" or (tools.startswith(b"[") and not tools[1:-1].strip()):
        every = b"[" + _DEFINITIONS[history.shape] + b"]"
    elif not tools.startswith(b"[") or _declares_other_recall(tools):
        return None
    else:
        every = tools[:-1] + b"," + _DEFINITIONS[history.shape] + b"]"
    return history._replace(fields={**fields, "tools": msgspec.Raw(every)})


def _declares_other_recall(tools: bytes) -> bool:
    if f'"{NAME}"'.encode() not in tools:
        return False
    try:
        every = _value(tools)
    except UNREADABLE:
        # Tools that cannot be decoded stay unchanged.
        return True
    return any(isinstance(tool, dict) and NAME in (tool.get("name"), _function(tool).get("name")) for tool in every)


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return function if isinstance(function, dict) else {}


def is_recall(shape: Shape, part: Mapping[str, Any]) -> bool:
    """Return whether a block, a call of Chat Completions or an item is a call of the tool."""
    match shape:
        case "messages":
            return part.get("type") == "tool_use" and part.get("name") == NAME
        case "chat":
            return (part.get("function") or {}).get("name") == NAME
    return part.get("type") == "function_call" and part.get("name") == NAME


def calls_in(shape: Shape, rows: Iterable[Mapping[str, Any]]) -> list[RecallCall]:
    """Return the calls of the tool in a model's answer."""
    if shape == "responses":
        return [
            RecallCall(str(row["call_id"]), _parse_arguments(row.get("arguments")))
            for row in rows
            if is_recall(shape, row)
        ]
    name = "content" if shape == "messages" else "tool_calls"
    every = [part for row in rows for part in row.get(name) or () if isinstance(part, dict) and is_recall(shape, part)]
    if shape == "messages":
        return [RecallCall(str(part["id"]), _parse_arguments(part.get("input"))) for part in every]
    return [RecallCall(str(part["id"]), _parse_arguments(part["function"].get("arguments"))) for part in every]


def tool_results(shape: Shape, answered: Sequence[AnsweredCall]) -> list[dict[str, Any]]:
    """Return the results of calls: blocks of the Messages API, rows of the other shapes."""
    match shape:
        case "messages":
            return [
                {"type": "tool_result", "tool_use_id": each.id, "content": each.text}
                | ({"is_error": True} if each.is_error else {})
                for each in answered
            ]
        case "chat":
            return [{"role": "tool", "tool_call_id": each.id, "content": each.text} for each in answered]
    return [{"type": "function_call_output", "call_id": each.id, "output": each.text} for each in answered]


def result_rows(shape: Shape, answered: Sequence[AnsweredCall]) -> list[dict[str, Any]]:
    """Return the results of calls as rows of a history."""
    every = tool_results(shape, answered)
    return [{"role": "user", "content": every}] if shape == "messages" else every


def _parse_arguments(arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = _value(arguments)
        except UNREADABLE:
            return {}
    if not isinstance(arguments, dict):
        return {}
    return {name: value for name, value in arguments.items() if name in _FIELDS and value is not None}
