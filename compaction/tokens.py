"""Token estimates: what a message would cost in input tokens, without a tokenizer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from compaction.media.files import media_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

CHARS_PER_TOKEN: Final = 4
"""Characters of English a token (requirement S1)."""
MOST_TOKENS: Final = 100_000_000
"""Tokens of one content at most: hundreds of times what a request has room for, and far from where an integer ends."""

_DENSE: Final = re.compile(
    "[\u0e00-\u0eff\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef"
    "\U00016fe0-\U00018fff\U0001b000-\U0001b2ff\U0001f000-\U0001faff\U00020000-\U0003ffff]"
)
"""Scripts and symbols in which a character is about a token of its own."""
_MEDIA: Final = frozenset({"image", "document", "container_upload"})
_encode: Final = msgspec.json.Encoder().encode


def text_weight(text: str) -> int:
    """Return the characters of `text`, those of dense scripts counted as four each."""
    if text.isascii():
        return len(text)
    return len(text) + (CHARS_PER_TOKEN - 1) * len(_DENSE.findall(text))


def json_text(value: Any) -> str:
    """Return `value` as compact JSON text."""
    return _encode(value).decode()


def block_weight(block: Mapping[str, Any]) -> int:  # noqa: PLR0911 - one return for each kind of block
    """Return one content block's weight in characters; tokens are a quarter of it."""
    match block.get("type"):
        case "text":
            return text_weight(_string(block.get("text")))
        case "tool_use" | "server_tool_use":
            return len(_string(block.get("name"))) + _json_weight(block.get("input", {}))
        case "tool_result":
            return content_weight(block.get("content", ""))
        case "thinking":
            return text_weight(_string(block.get("thinking")))
        case "compaction" if isinstance(block.get("content"), str):
            return text_weight(_string(block.get("content")))
        case "document" if (weight := _text_of_document(block)) is not None:
            return weight
        case "instruction":
            return text_weight(_string(block.get("text")))
        case "opaque" if isinstance(size := block.get("size"), int):
            return min(max(0, size), MOST_TOKENS * CHARS_PER_TOKEN)
        case str(kind) if kind in _MEDIA:
            facts = media_facts(block)
            return 0 if facts is None else facts.tokens * CHARS_PER_TOKEN
        case _:
            return _json_weight(block)


def content_weight(content: Any) -> int:
    """Return the weight in characters of a message's or a tool result's content."""
    if isinstance(content, str):
        return text_weight(content)
    if isinstance(content, list):
        weight = 0
        for block in content:
            if isinstance(block, dict):
                weight += block_weight(block)
        return weight
    return 0 if content is None else _json_weight(content)


def content_tokens(content: Any) -> int:
    """Return the estimated tokens of one message's content, rounded up; no more than MOST_TOKENS."""
    return min(MOST_TOKENS, -(-content_weight(content) // CHARS_PER_TOKEN))


def _json_weight(value: Any) -> int:
    encoded = _encode(value)
    return len(encoded) if encoded.isascii() else text_weight(encoded.decode())


def _text_of_document(block: Mapping[str, Any]) -> int | None:
    """Return the weight of a document that is text, None for a file."""
    source = block.get("source")
    if isinstance(source, dict) and source.get("type") == "text":
        return text_weight(_string(source.get("data")))
    if isinstance(source, dict) and source.get("type") == "content":
        return content_weight(source.get("content", ""))
    return None


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
