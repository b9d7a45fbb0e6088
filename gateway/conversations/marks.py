"""Marks for the prompt cache in rows of the Messages API."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from compaction.messages import CACHE_MARK

MARK: Final = CACHE_MARK.encode()
_value: Final = msgspec.json.Decoder().decode


def mark_of(row: bytes) -> Any:
    """Return the last mark in a row, None for none."""
    if MARK not in row:
        return None
    value = _value(row)
    content = value.get("content") if isinstance(value, dict) else None
    marks = [part.get(CACHE_MARK) for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return next((mark for mark in reversed(marks) if isinstance(mark, dict)), None)
