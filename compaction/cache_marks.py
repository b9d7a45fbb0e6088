"""Marks for the prompt cache (`cache_control`): the Messages API refuses a request that has more than four.

Products mark the newest message of every call, so a stored conversation has more and more of them. Only the last ones
are of use: a call reads what an earlier one wrote there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compaction.messages import CACHE_MARK, count_marks, is_blank

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compaction.view import View, ViewMessage

MAX_MARKS: Final = 4
"""Marks that the API takes in tools, system prompt and messages together (API documentation, prompt caching)."""

_MARKABLE: Final = frozenset({"text", "tool_use", "tool_result", "image", "document"})
"""Blocks that may carry a mark for the cache; thinking may not."""


class MarkableParts(NamedTuple):
    """What of a request may carry marks, in the order in which the API goes through it."""

    tools: Any
    system: Any
    messages: View


def keep_last(marked: MarkableParts, room: int = MAX_MARKS) -> MarkableParts:
    """Return a request with its last `room` marks alone; what loses none is the same object."""
    counts = [count_marks(message.content) for message in marked.messages]
    fixed = count_marks(marked.tools) + count_marks(marked.system)
    excess = fixed + sum(counts) - max(0, room)
    if excess <= 0:
        return marked
    tools, excess = _without_first(marked.tools, excess)
    system, excess = _without_first(marked.system, excess)
    messages: list[ViewMessage] = []
    for message, count in zip(marked.messages, counts, strict=True):
        content, excess = _without_first(message.content, excess) if count and excess else (message.content, excess)
        messages.append(message if content is message.content else message.with_content(content))
    return MarkableParts(tools, system, tuple(messages))


def without_marks(view: Sequence[ViewMessage]) -> View:
    """Return `view` without a mark."""
    return keep_last(MarkableParts(None, None, tuple(view)), 0).messages


def markable(content: Any) -> int | None:
    """Return which block of a content is the last that may carry a mark, None for none; a text is one block."""
    if isinstance(content, str):
        return 0 if content.strip() else None
    if not isinstance(content, list):
        return None
    blocks = (at for at in reversed(range(len(content))) if _may_carry_mark(content[at]))
    return next(blocks, None)


def with_mark(content: Any, mark: Any) -> Any:
    """Return a content with a mark on the last block that may carry one."""
    if (place := markable(content)) is None:
        return content
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [*parts[:place], {**parts[place], CACHE_MARK: mark}, *parts[place + 1 :]]


def _may_carry_mark(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in _MARKABLE and not is_blank(block)


def _without_first(content: Any, excess: int) -> tuple[Any, int]:
    """Return `content` without its first `excess` marks, and how many are still to go."""
    if not excess or not isinstance(content, list):
        return content, excess
    kept: list[Any] = []
    left = excess
    for block in content:
        changed = block
        if left and isinstance(block, dict):
            for inner, key in _inside(block):
                shorter, left = _without_first(inner, left)
                if shorter is not inner:
                    outer = {**block["source"], "content": shorter} if key == "source" else shorter
                    changed = {**changed, key: outer}
            if left and block.get(CACHE_MARK) is not None:
                changed = {name: value for name, value in changed.items() if name != CACHE_MARK}
                left -= 1
        kept.append(changed)
    return (content, left) if left == excess else (kept, left)


def _inside(block: Mapping[str, Any]) -> list[tuple[list[Any], str]]:
    """Return the blocks inside a result or a document, and under which key they are. Inputs of calls hold no blocks."""
    content, source = block.get("content"), block.get("source")
    places = [(content, "content")] if isinstance(content, list) else []
    if isinstance(source, dict) and isinstance(source.get("content"), list):
        places.append((source["content"], "source"))
    return places
