"""OpenAI chat messages as Anthropic ones: system turns, tool calls, tool messages, content parts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from cli.client.types import Message
from cli.transcripts.raw_json import FieldError, field_error

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

ROLES: Final = frozenset({"system", "developer", "tool", "function"})
"""Roles that the Messages API does not have."""
KEYS: Final = frozenset({"tool_calls", "tool_call_id", "function_call"})
"""Message fields that the Messages API does not have."""
PARTS: Final = frozenset({"image_url", "input_audio", "refusal"})
"""Content parts that the Messages API does not have."""

_DATA_URL: Final = re.compile(r"data:(?P<media>[\w.+-]+/[\w.+-]+);base64,(?P<data>.*)", re.DOTALL)


class _Function(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] = ""


class _Call(msgspec.Struct):
    id: str
    function: _Function


class _ChatMessage(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None


class _ToolFunction(msgspec.Struct):
    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})


class _Tool(msgspec.Struct):
    function: _ToolFunction


def speaks_openai(items: Sequence[msgspec.Raw]) -> bool:
    """Tell whether a list of messages can only be OpenAI's: plain text alone is the same in both formats."""
    return any(_is_openai(item) for item in items)


def _is_openai(item: msgspec.Raw) -> bool:
    fields = msgspec.json.decode(item)
    if not isinstance(fields, dict):
        return False
    content, role = fields.get("content"), fields.get("role")
    parts = content if isinstance(content, list) else []
    return (
        (isinstance(role, str) and role in ROLES)
        or not KEYS.isdisjoint(fields)
        or ("content" in fields and content is None)
        or any(isinstance(part, dict) and str(part.get("type")) in PARTS for part in parts)
    )


def convert_messages(items: Sequence[msgspec.Raw]) -> tuple[str | None, list[Message]]:
    """Return the system text and the messages.

    System messages ahead of the first other message become the system text, a later one a user message.
    Consecutive tool messages answer one assistant message, so they become one user message.
    Raises FieldError.
    """
    system: list[str] = []
    converted: list[tuple[str, Any]] = []
    results: list[dict[str, Any]] = []
    for index, item in enumerate(items):
        message = _decoded(item, index, _ChatMessage)
        if message.role == "tool":
            if not results:
                converted.append(("user", results))
            results.append(_tool_result(message, index))
            continue
        results = []
        if message.role == "assistant":
            converted.append(("assistant", _assistant_content(message, index)))
        elif message.role == "user":
            converted.append(("user", _content(message.content)))
        elif message.role in {"system", "developer"}:
            if converted:
                converted.append(("user", _content(message.content)))
            else:
                system.append(_plain_text(message.content))
        else:
            raise FieldError(index, "role", f"unknown role {message.role!r}")
    encoded = [Message(role=role, content=msgspec.Raw(msgspec.json.encode(content))) for role, content in converted]
    return "\n\n".join(system) or None, encoded


def convert_tools(items: Sequence[msgspec.Raw]) -> list[dict[str, Any]]:
    """Return OpenAI tool definitions as Anthropic ones. Raises FieldError."""
    tools = [_decoded(item, index, _Tool).function for index, item in enumerate(items)]
    return [{"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in tools]


def _decoded(item: msgspec.Raw, index: int, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(item, type=kind)
    except msgspec.ValidationError as error:
        raise field_error(index, error) from None


def _content(content: str | list[dict[str, Any]] | None) -> str | list[dict[str, Any]]:
    return [_block(part) for part in content] if isinstance(content, list) else content or ""


def _block(part: dict[str, Any]) -> dict[str, Any]:
    match part:
        case {"type": "image_url", "image_url": {"url": str(url)}} | {
            "type": "image_url",
            "image_url": str(url),
        }:
            if match := _DATA_URL.fullmatch(url):
                source = {"type": "base64", "media_type": match["media"], "data": match["data"]}
            else:
                source = {"type": "url", "url": url}
            return {"type": "image", "source": source}
        case {"type": "refusal", "refusal": str(text)}:
            return {"type": "text", "text": text}
        case _:
            return part


def _plain_text(content: str | list[dict[str, Any]] | None) -> str:
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if "text" in part)
    return content or ""


def _assistant_content(message: _ChatMessage, index: int) -> str | list[dict[str, Any]]:
    text = _content(message.content) or message.refusal or ""
    if not message.tool_calls:
        return text
    blocks = [{"type": "text", "text": text}] if isinstance(text, str) and text else list(text)
    calls = [
        {
            "type": "tool_use",
            "id": call.id,
            "name": call.function.name,
            "input": _arguments(call, index, place),
        }
        for place, call in enumerate(message.tool_calls)
    ]
    return [*blocks, *calls]


def _arguments(call: _Call, index: int, place: int) -> dict[str, Any]:
    arguments = call.function.arguments
    if isinstance(arguments, dict):
        return arguments
    field = f"tool_calls[{place}].function.arguments"
    try:
        return msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except msgspec.ValidationError:
        raise FieldError(index, field, "a JSON object is expected in this string") from None
    except msgspec.DecodeError as error:
        raise FieldError(index, field, f"the string is not JSON: {error}") from None


def _tool_result(message: _ChatMessage, index: int) -> dict[str, Any]:
    if message.tool_call_id is None:
        raise FieldError(index, "tool_call_id", "a tool message names the call it answers")
    return {
        "type": "tool_result",
        "tool_use_id": message.tool_call_id,
        "content": _content(message.content),
    }
