"""What Chat Completions accepts as `messages`, written from its reference and apart from the product.

"An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'" and
"messages with role 'tool' must be a response to a preceding message with 'tool_calls'" are the refusals behind the
pairing rules; the calls of a last message may be open. Names: 1..64 of `[a-zA-Z0-9_-]`. "Invalid
'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_PARTS: Final[Mapping[str, frozenset[str]]] = {
    "system": frozenset({"text"}),
    "developer": frozenset({"text"}),
    "tool": frozenset({"text"}),
    "user": frozenset({"text", "image_url", "input_audio", "file"}),
    "assistant": frozenset({"text", "refusal"}),
}


def problems(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the API would refuse."""
    if not messages:
        return ["no message"]
    return [*_pairing(messages), *(each for at, m in enumerate(messages) for each in _of_message(at, m))]


def _pairing(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    waiting: list[str] = []
    for at, message in enumerate(messages):
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in waiting:
                yield f"{at}: a result that answers no open call"
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            yield f"{at}: calls {waiting} are not answered"
        waiting = [str(call.get("id")) for call in message.get("tool_calls") or ()]
        if len(set(waiting)) != len(waiting):
            yield f"{at}: two calls of one id"
    if waiting and messages[-1].get("role") == "tool":
        yield f"the end: calls {waiting} are not answered"


def _of_message(at: int, message: Mapping[str, Any]) -> Iterator[str]:
    role, content = message.get("role"), message.get("content")
    if role not in _PARTS:
        yield f"{at}: role {role!r}"
        return
    if role == "assistant":
        if content is None and not any(message.get(name) for name in ("tool_calls", "refusal", "audio")):
            yield f"{at}: an answer of nothing"
        yield from _of_calls(at, message.get("tool_calls"))
    elif content is None:
        yield f"{at}: no content"
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        yield f"{at}: a result without tool_call_id"
    if role == "tool" and len(message["tool_call_id"]) > 40:
        yield f"{at}: an id of {len(message['tool_call_id'])} characters"
    yield from _of_content(at, role, content)


def _of_content(at: int, role: Any, content: Any) -> Iterator[str]:
    if not isinstance(content, list):
        if not isinstance(content, str | None):
            yield f"{at}: content is {type(content).__name__}"
        return
    if not content:
        yield f"{at}: content is an empty list"
    for part in content:
        if part.get("type") not in _PARTS[role]:
            yield f"{at}: a part {part.get('type')!r} in {role}"
        if part.get("type") == "image_url" and not is_image(part["image_url"]["url"]):
            yield f"{at}: an image at {part['image_url']['url'][:40]!r}"
        if part.get("type") == "text" and not isinstance(part.get("text"), str):
            yield f"{at}: a text without text"


def is_image(url: str) -> bool:
    """Return whether an image has an address, or data of a type that models read."""
    return re.match(r"https?://.|data:image/(png|jpeg|gif|webp);base64,.", url) is not None


def _of_calls(at: int, calls: Any) -> Iterator[str]:
    if calls is not None and not calls:
        yield f"{at}: tool_calls is empty"
    for call in calls or ():
        if call.get("type") == "custom":
            if not isinstance(call["custom"].get("input"), str):
                yield f"{at}: a custom call without input"
        elif not _NAME.match(call["function"]["name"]) or not is_object(call["function"]["arguments"]):
            yield f"{at}: a call {call['function']}"


def is_object(arguments: Any) -> bool:
    """Return whether arguments are what servers parse that show them to a model: the text of a JSON object."""
    try:
        return isinstance(msgspec.json.decode(arguments), dict)
    except (TypeError, msgspec.DecodeError):
        return False
