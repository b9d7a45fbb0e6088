"""In words: what stands for a block in a shape that has no counterpart of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compaction.messages import CALLS, INSTRUCTION, OPAQUE, THINKING, Block, blocks, is_server_result
from compaction.shapes.inner import url_of
from compaction.summary.attachments import result_text, server_result_text
from compaction.text.malformed import UNREAD_KEY, is_json_object, read_arguments
from compaction.tokens import json_text

REASONING: Final = "reasoning, which only the model that wrote it can read"
SEE_BELOW: Final = "(The result is shown after this message.)"
ERROR: Final = "Error: "


def spoken(block: Block) -> str | None:  # noqa: PLR0911 - one return for each kind of block
    """Return a block as text that says what it is, "" where there is nothing to say, None where words cannot say it."""
    kind = block.get("type")
    match kind:
        case "text":
            return str(block.get("text") or "")
        case str() if kind == INSTRUCTION:
            return f"[{block.get('by')} message]\n{block.get('text')}"
        case str() if kind == OPAQUE:
            text = str(block.get("text") or "")
            return f"[{block.get('of')}] {text}" if text.strip() else "" if block.get("of") == "nothing" else None
        case "compaction" if isinstance(block.get("content"), str):
            return str(block["content"])
        case str() if kind in CALLS:
            return f"[calls {block.get('name')} with {json_text(block.get('input', {}))}]"
        case "tool_result":
            return f"[result] {text_of_result(block)}"
        case "search_result":
            return f"[search result {block.get('title')}, {block.get('source')}] {result_text(block.get('content'))}"
        case "image" | "document":
            return _of_source(block)
    return f"[{kind}] {server_result_text(block.get('content'))}" if is_server_result(block) else None


def _of_source(block: Block) -> str | None:
    source = block.get("source")
    if not isinstance(source, Mapping):
        return None
    if source.get("type") == "text":
        return str(source.get("data") or "")
    if source.get("type") == "content":
        return result_text(source.get("content"))
    url = url_of(source)
    return None if url is None or url.startswith("data:") else f"[{block['type']} at {url}]"


def what_is(block: Block) -> str:
    """Return what is left out, in words, where nothing stands for it."""
    kind = str(block.get("of") if block.get("type") == OPAQUE else block.get("type"))
    return REASONING if kind in THINKING else f"{kind}, which this shape has no counterpart of"


def text_of_result(block: Block) -> str:
    """Return a tool result as one text; an error says that it is one."""
    content = block.get("content", "")
    if isinstance(content, str):
        text = content
    else:
        parts = blocks(content)
        texts = [spoken(part) or "" for part in parts if part.get("type") not in {"image", "document"}]
        text = "\n".join(texts) or (SEE_BELOW if parts else "")
    return f"{ERROR}{text}" if block.get("is_error") and not text.startswith(ERROR) else text


def arguments_text(block: Block) -> str:
    """Return a call's arguments as the text of a JSON object; one that was kept as text is that text."""
    given = block.get("input", {})
    if isinstance(given, Mapping):
        kept = given.get(UNREAD_KEY)
        return kept if len(given) == 1 and isinstance(kept, str) and is_json_object(kept) else json_text(given)
    return json_text(read_arguments(given))
