"""Parts: the blocks of a message as text that can be searched and quoted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compaction.media.files import OPAQUE_KINDS, media_facts
from compaction.messages import CALLS, INSTRUCTION, OPAQUE, blocks, is_server_result
from compaction.recall import tool
from compaction.summary.attachments import media_note
from compaction.tokens import json_text

if TYPE_CHECKING:
    from collections.abc import Mapping

MEDIA: Final = frozenset({"image", "document", "container_upload"})
_OPAQUE_MEDIA: Final = tuple(OPAQUE_KINDS)
_NOT_WORDS: Final = re.compile(r"[\W_]+")
_MOST_URL: Final = 2_000
"""Characters of a URL that are searched for its file name."""
_WORDS: Final = frozenset({"text", INSTRUCTION, OPAQUE})
_NEVER: Final = frozenset({"thinking", "redacted_thinking"})
"""Kinds that are never quoted. Reasoning belongs to the answer that it led to."""


class QuotedPart(NamedTuple):
    """One block of a message, as text."""

    block: int
    """Index of the block in the message's content."""
    kind: str
    text: str
    tool: str | None = None
    """Name of the tool that was called or that answered. For a context block, its source."""
    is_context: bool = False
    """Whether this is a context block that came with the message, rather than a block of it."""


def call_names(content: Any) -> dict[str, str]:
    """Return the names of the tools that a message calls, by call id. Calls of recall get `tool.NAME`."""
    return {
        str(block.get("id")): tool.NAME if tool.is_call(block) else str(block.get("name"))
        for block in blocks(content)
        if block.get("type") in CALLS
    }


def parts_of(content: Any, names: Mapping[str, str]) -> list[QuotedPart]:
    """Return the parts of a message's content, without calls of recall and their results.

    `names` maps the ids of answered calls to tool names (see `call_names`).
    """
    quoted_parts = []
    for index, block in enumerate(blocks(content)):
        kind = str(block.get("type"))
        if kind in _NEVER:
            continue
        if kind in CALLS:
            if not tool.is_call(block):
                name = str(block.get("name"))
                quoted_parts.append(QuotedPart(index, kind, f"{name} {json_text(block.get('input', {}))}", name))
        elif kind == "tool_result" or is_server_result(block):
            name = names.get(str(block.get("tool_use_id")), "")
            if name != tool.NAME:
                quoted_parts.append(QuotedPart(index, kind, text_of(block.get("content", "")), name or None))
                quoted_parts += [
                    QuotedPart(index, str(part["type"]), describe_medium(part), name or None)
                    for part in blocks(block.get("content"))
                    if media_facts(part) is not None
                ]
        else:
            quoted_parts.append(QuotedPart(index, kind, _block_text(block)))
    return quoted_parts


def _block_text(block: Mapping[str, Any]) -> str:
    kind = block.get("type")
    if media_facts(block) is not None:
        return describe_medium(block)
    if kind in _WORDS:
        return str(block.get("text") or "")
    if kind in MEDIA:
        source = block.get("source")
        if isinstance(source, dict) and source.get("type") == "text":
            return str(source.get("data") or "")
        return text_of(source.get("content")) if isinstance(source, dict) and "content" in source else ""
    if isinstance(content := block.get("content"), str):
        return content
    return json_text(block)


def describe_medium(block: Mapping[str, Any]) -> str:
    """Return a description of an image or a file, with searchable words from its file name."""
    source = block.get("source")
    url = source.get("url") if isinstance(source, dict) else None
    named = url if isinstance(url, str) else block.get("title") or (block.get("text") if "of" in block else None)
    words = _NOT_WORDS.sub(" ", str(named or "")[:_MOST_URL].partition("?")[0].rpartition("/")[2]).strip()
    return f"{media_note(block)} ({words})" if words else media_note(block)


def is_medium(kind: str, text: str) -> bool:
    """Return whether a part is an image or a file, which is described rather than quoted."""
    return kind in MEDIA or (kind == OPAQUE and text.startswith(_OPAQUE_MEDIA))


def text_of(content: Any) -> str:
    """Return the text of a tool result's content. Other content is omitted."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        said = [part for part in content if isinstance(part, dict) and media_facts(part) is None]
        return "\n".join(filter(None, map(_block_text, said)))
    return "" if content is None else json_text(content)
