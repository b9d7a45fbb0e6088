"""What the Responses API accepts as `input` items, written from its reference and apart from the product.

Behind the pairing rules are the refusals "No tool output found for function call …", "No tool call found for function
call output …" and "Item 'rs_…' of type 'reasoning' was provided without its required following item"; calls at the end
may be open. An item that was answered after reasoning goes back with it, or without its id ("… was provided without
its required 'reasoning' item"). "Invalid 'input[1].call_id': string too long. Expected a string with maximum
length 64".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from tests.support.shapes.chat_api import is_image, is_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_CALLS: Final = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
}
_OUTPUTS: Final = {output: call for call, output in _CALLS.items()}
_USER_PARTS: Final = frozenset({"input_text", "input_image", "input_file", "input_audio"})
_MODEL_PARTS: Final = frozenset({"output_text", "refusal"})


def problems(items: Sequence[Mapping[str, Any]], *, after_reasoning: frozenset[str] = frozenset()) -> list[str]:
    """Return what the API would refuse; `after_reasoning` are ids of items that were answered right after reasoning."""
    return [
        *_pairing(items),
        *_reasoning(items, after_reasoning),
        *(p for at, i in enumerate(items) for p in _of(at, i)),
    ]


def _id(item: Mapping[str, Any]) -> str:
    return str(item.get("call_id", item.get("id")))


def _pairing(items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    waiting: dict[str, tuple[str, int]] = {}
    answered = 0
    for at, item in enumerate(items):
        kind = item.get("type")
        if kind in _CALLS:
            if _id(item) in waiting:
                yield f"{at}: two open calls of one id"
            waiting[_id(item)] = (_CALLS[str(kind)], at)
        elif kind in _OUTPUTS:
            wanted, _ = waiting.pop(_id(item), ("", 0))
            answered = at
            if wanted != kind:
                yield f"{at}: {kind} answers no open call"
    for identifier, (_, at) in waiting.items():
        if at < answered or any(_is_asked(item) for item in items[at:]):
            yield f"{at}: call {identifier} is not answered"


def _is_asked(item: Mapping[str, Any]) -> bool:
    return item.get("role") == "user" or item.get("type") in _OUTPUTS


def _reasoning(items: Sequence[Mapping[str, Any]], after_reasoning: frozenset[str]) -> Iterator[str]:
    for at, item in enumerate(items):
        follows = items[at + 1] if at + 1 < len(items) else {}
        if item.get("type") == "reasoning" and (not follows or _is_asked(follows)):
            yield f"{at}: reasoning that nothing follows"
        before = items[at - 1] if at else {}
        if item.get("id") in after_reasoning and not _is_asked(item) and before.get("type") != "reasoning":
            yield f"{at}: {item['id']} without its reasoning"


def _of(at: int, item: Mapping[str, Any]) -> Iterator[str]:
    if item.get("type") in _OUTPUTS and len(_id(item)) > 64:
        yield f"{at}: an id of {len(_id(item))} characters"
    match item.get("type", "message"):
        case "message":
            yield from _of_message(at, item)
        case "item_reference":
            yield f"{at}: a reference"
        case "function_call" if not is_object(item.get("arguments")) or not _NAME.match(item["name"]):
            yield f"{at}: a call {item}"
        case "function_call_output" | "custom_tool_call_output":
            output = item.get("output")
            parts = output if isinstance(output, list) else []
            if not isinstance(output, str) and (
                not parts or any(part.get("type") not in _USER_PARTS for part in parts)
            ):
                yield f"{at}: output {output!r}"
        case "shell_call_output":
            if not all({"stdout", "stderr", "outcome"} <= set(each) for each in item["output"]):
                yield f"{at}: output {item['output']!r}"
        case "computer_call_output" if item["output"].get("type") != "computer_screenshot":
            yield f"{at}: output {item['output']!r}"


def _of_message(at: int, item: Mapping[str, Any]) -> Iterator[str]:
    role, content = item.get("role"), item.get("content")
    if role not in {"user", "assistant", "system", "developer"}:
        yield f"{at}: role {role!r}"
    taken = _MODEL_PARTS if role == "assistant" else _USER_PARTS
    if isinstance(content, list):
        yield from (
            f"{at}: an image at {part['image_url'][:40]!r}"
            for part in content
            if isinstance(part.get("image_url"), str) and not is_image(part["image_url"])
        )
        if not content:
            yield f"{at}: no content"
        yield from (f"{at}: a part {part.get('type')!r}" for part in content if part.get("type") not in taken)
    elif not isinstance(content, str):
        yield f"{at}: content is {type(content).__name__}"
