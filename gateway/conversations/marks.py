"""Marks for the prompt cache in rows of the Messages API."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from compaction.messages import CACHE_MARK

MARK: Final = CACHE_MARK.encode()
_MARKABLE: Final = frozenset({"text", "tool_use", "tool_result", "image", "document"})
"""Blocks that may carry a mark for the cache; thinking may not."""
_value: Final = msgspec.json.Decoder().decode


def mark_of(row: bytes) -> Any:
    """Return the last mark in a row, None for none."""
    if MARK not in row:
        return None
    value = _value(row)
    content = value.get("content") if isinstance(value, dict) else None
    marks = [part.get(CACHE_MARK) for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return next((mark for mark in reversed(marks) if isinstance(mark, dict)), None)


def with_mark(content: Any, mark: Any) -> Any:
    """Return a content whose last block has a mark, if it may have one."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not parts or parts[-1].get("type") not in _MARKABLE:
        return content
    return [*parts[:-1], {**parts[-1], CACHE_MARK: mark}]
