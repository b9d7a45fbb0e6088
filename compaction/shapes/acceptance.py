"""Repair of messages and items that the API of their own shape refuses, whatever stands around them.

A message that is accepted comes back as the same object. The inner form of what comes back is that of the message
after `compaction.repair`, so a repaired message is served by the same rules as any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from compaction.text.malformed import (
    NO_MEDIA,
    is_json_object,
    read_arguments,
    repair_data_url,
    repair_media,
    tool_name,
)
from compaction.tokens import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from compaction.shapes.inner import Shape

NAME_CHARS: Final = 64
"""Characters of a tool's name in Chat Completions and Responses."""

Message = dict[str, Any]


def repair_message(shape: Shape, message: Message, *, declared: str = "") -> Message:
    """Return a message or an item as the API of its shape accepts it.

    Names of tools that stand in quotes in `declared`, the JSON text of a request's tools, are kept: the provider
    accepted them.
    """
    repaired = _REPAIRERS[shape](message, declared)
    return message if _is_same(repaired, message) else repaired


def is_accepted(shape: Shape, message: Message) -> bool:
    """Return whether the API of a shape accepts a message."""
    return repair_message(shape, message) is message


def _is_same(after: Message, before: Message) -> bool:
    """Return whether two objects have the same values, by identity."""
    return after is before or (
        after.keys() == before.keys() and all(after[key] is value for key, value in before.items())
    )


def _repair_chat(message: Message, declared: str) -> Message:
    repaired = dict(message)
    role, calls = message.get("role"), message.get("tool_calls")
    if isinstance(message.get("content"), list):
        repaired["content"] = _repair_parts(message["content"], _repair_chat_part)
    if role == "tool" and message.get("content") is None:
        repaired["content"] = ""
    if role != "assistant":
        return repaired
    if isinstance(calls, list):
        repaired["tool_calls"] = _repair_list(calls, lambda call: _repair_chat_call(call, declared))
        if not calls:
            del repaired["tool_calls"]
    if isinstance(function := message.get("function_call"), dict):
        repaired["function_call"] = _repair_function(function, declared)
    if message.get("content") is None and not any(message.get(field) for field in _INSTEAD_OF_CONTENT):
        repaired["content"] = ""
    return repaired


_INSTEAD_OF_CONTENT: Final = ("tool_calls", "function_call", "refusal", "audio")


def _repair_chat_call(call: Any, declared: str) -> Any:
    if not isinstance(call, dict):
        return call
    if isinstance(function := call.get("function"), dict):
        repaired = {**call, "function": _repair_function(function, declared)}
    elif isinstance(custom := call.get("custom"), dict):
        repaired = {**call, "custom": _with_name(custom, declared)}
    else:
        return call
    return call if _is_same(repaired, call) else repaired


def _repair_function(function: Message, declared: str) -> Message:
    return _with_arguments(_with_name(function, declared))


def _with_name(call: Message, declared: str) -> Message:
    name = call.get("name")
    if not isinstance(name, str) or (name.strip() and json_text(name) in declared):
        return call
    accepted = tool_name(name, NAME_CHARS)
    return call if accepted == name else {**call, "name": accepted}


def _with_arguments(call: Message) -> Message:
    given = call.get("arguments")
    if isinstance(given, str) and is_json_object(given):
        return call
    return {**call, "arguments": json_text(read_arguments(given))}


def _repair_chat_part(part: Message) -> Message:
    if part.get("type") != "image_url" or not isinstance(image := part.get("image_url"), dict):
        return part
    url = repair_data_url(image.get("url"))
    if url is None:
        return {"type": "text", "text": NO_MEDIA}
    return part if url == image.get("url") else {**part, "image_url": {**image, "url": url}}


def _repair_responses(item: Message, declared: str) -> Message:
    match item.get("type", "message"):
        case "function_call":
            return _repair_function(item, declared)
        case "custom_tool_call":
            return _with_name(item, declared)
        case "function_call_output" | "custom_tool_call_output":
            if item.get("output") is None:
                return {**item, "output": ""}
            field = "output"
        case "message":
            field = "content"
        case _:
            return item
    parts = item.get(field)
    if not isinstance(parts, list):
        return item
    repaired = _repair_parts(parts, _repair_item_part)
    return item if repaired is parts else {**item, field: repaired}


def _repair_item_part(part: Message) -> Message:
    if part.get("type") != "input_image" or not isinstance(given := part.get("image_url"), str):
        return part
    url = repair_data_url(given)
    if url is None:
        return {"type": "input_text", "text": NO_MEDIA}
    return part if url == given else {**part, "image_url": url}


def _repair_messages(message: Message, declared: str) -> Message:
    """Return a message with calls and media repaired; what else may be wrong with it `compaction.repair` sees."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    repaired = _repair_parts(content, lambda block: _repair_block(block, declared))
    return message if repaired is content else {**message, "content": repaired}


def _repair_block(block: Message, declared: str) -> Message:
    kind = block.get("type")
    if kind == "tool_result" and isinstance(inner := block.get("content"), list):
        parts = _repair_parts(inner, lambda part: _repair_block(part, declared))
        return block if parts is inner else {**block, "content": parts}
    if kind != "tool_use":
        return repair_media(block)
    name, given = block.get("name"), block.get("input")
    known = isinstance(name, str) and name.strip() and json_text(name) in declared
    accepted = name if known else tool_name(name)
    if accepted == name and isinstance(given, dict):
        return block
    return {**block, "name": accepted, "input": read_arguments(given)}


def _repair_parts(parts: list[Any], repair: Callable[[Message], Message]) -> list[Any]:
    return _repair_list(parts, lambda part: repair(part) if isinstance(part, dict) else part)


def _repair_list(values: list[Any], repair: Callable[[Any], Any]) -> list[Any]:
    """Return the same list if nothing in it is repaired."""
    repaired = [repair(value) for value in values]
    return values if all(after is before for after, before in zip(repaired, values, strict=True)) else repaired


_REPAIRERS: Final[Mapping[Shape, Callable[[Message, str], Message]]] = {
    "messages": _repair_messages,
    "chat": _repair_chat,
    "responses": _repair_responses,
}
