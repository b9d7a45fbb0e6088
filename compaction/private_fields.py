"""Fields that a tool attaches to its result for the application alone, taken out before a model reads the result."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from compaction.messages import CALLS, INSTRUCTION, THINKING, blocks

if TYPE_CHECKING:
    from collections.abc import Collection

    from compaction.messages import Block, Content

LEFT_OUT: Final = "[... the rest is left out: it may hold fields that are not for a model ...]"

_SPOKEN: Final = CALLS | THINKING | {"text", INSTRUCTION}
_RESULTS: Final = frozenset({"tool_result", "mcp_tool_result"})
_KEY: Final = re.compile(r'\\{0,8}"([^"\n]{1,300}?)\\{0,8}"\s{0,20}:')
_BLANK: Final = "\ufeff \t\r\n"
_MAX_NESTING: Final = 6
"""JSON texts inside JSON texts."""


def without_fields(text: str, fields: Collection[str], *, depth: int = 0) -> str:
    """Return a result's text without `fields`, at any depth of its JSON and of JSON texts inside it.

    A text that is no JSON object or array, nor a series of them by lines, comes back as it is; JSON that is cut off or
    broken ends before the first of the fields in it. Names are compared exactly, as JSON spells them.
    """
    if not fields or not text.lstrip(_BLANK).startswith(("{", "[")):
        return text
    if "\\u" not in text and not any(field in text for field in fields):
        return text
    try:
        return LEFT_OUT if depth > _MAX_NESTING else _remove_fields(text, fields, depth)
    except RecursionError:
        return LEFT_OUT
    except ValueError:
        return _by_line(text, fields, depth)


def without_keys(value: Any, fields: Collection[str]) -> Any:
    """Return a block's value without `fields`, at any depth; what is nested too deeply to look at is left out."""
    try:
        return _scrub(value, fields, 0) if fields else value
    except RecursionError:
        return None


def without_private(content: Content, fields: Collection[str]) -> Content:
    """Return a message's content without `fields` in what tools and files say; what was said and called stays."""
    if not fields or isinstance(content, str):
        return content
    return [dict(block) if block.get("type") in _SPOKEN else _said_by_tool(block, fields) for block in blocks(content)]


def _said_by_tool(block: Block, fields: Collection[str]) -> dict[str, Any]:
    # The keys of a block, and of the parts of a result, are the API's own.
    if block.get("type") in _RESULTS and isinstance(parts := block.get("content"), list):
        kept = [{key: without_keys(value, fields) for key, value in part.items()} for part in blocks(parts)]
        return {**block, "content": kept}
    return {key: without_keys(value, fields) for key, value in block.items()}


def _remove_fields(text: str, fields: Collection[str], depth: int) -> str:
    """Return a JSON text without `fields`, itself where there are none; raises ValueError for what is no JSON."""
    changed = False

    def scrubbed(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal changed
        # Pairs, not a dict: a repeated key hides the value of the first from whoever looks at the result alone.
        kept = {key: _scrub_text(value, fields, depth) for key, value in pairs if key not in fields}
        changed = changed or any(key in fields or kept[key] != value for key, value in pairs)
        return kept

    value = json.loads(text.strip(_BLANK), object_pairs_hook=scrubbed)
    whole = _scrub_text(value, fields, depth)
    if not changed and whole == value:
        return text
    return json.dumps(whole, ensure_ascii=False)


def _scrub_text(value: Any, fields: Collection[str], depth: int) -> Any:
    """Return strings and lists without fields in the JSON texts they hold; objects are done already."""
    if isinstance(value, str):
        return without_fields(value, fields, depth=depth + 1)
    return [_scrub_text(inner, fields, depth) for inner in value] if isinstance(value, list) else value


def _scrub(value: Any, fields: Collection[str], depth: int) -> Any:
    if isinstance(value, Mapping):
        return {key: _scrub(inner, fields, depth) for key, inner in value.items() if key not in fields}
    if isinstance(value, list):
        return [_scrub(inner, fields, depth) for inner in value]
    return _scrub_text(value, fields, depth)


def _by_line(text: str, fields: Collection[str], depth: int) -> str:
    try:
        return "\n".join(_remove_fields(line, fields, depth) if line.strip() else line for line in text.split("\n"))
    except (ValueError, RecursionError):
        return _before_field(text, fields)


def _before_field(text: str, fields: Collection[str]) -> str:
    at = 0
    while match := _KEY.search(text, at):
        name = match[1]
        with suppress(ValueError):  # then it counts as it is written
            name = json.loads(f'"{name}"')
        if name in fields:
            return f"{text[: match.start()]}{LEFT_OUT}"
        # The quotation mark that ends one string may begin another: text that is cut off says nothing about which.
        at = match.start(1)
    return text
