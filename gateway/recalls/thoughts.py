"""Thinking that is the gateway's own, by which a client sees what was recalled: left out of what it sends again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

SIGNATURE: Final = "palimpsest_recall"
"""Of a block of thinking."""
ITEM: Final = f"rs_{SIGNATURE}_"
"""How the id of an item of reasoning begins."""
_MARK: Final = SIGNATURE.encode()
_value: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def has_thoughts(text: bytes) -> bool:
    """Tell whether there may be any in a request."""
    return _MARK in text


def without_thoughts(rows: Iterable[bytes]) -> list[bytes]:
    """Return rows without them: no provider takes a signature that is none of its own."""
    return [kept for row in rows if (kept := _without(row) if has_thoughts(row) else row) is not None]


def _without(row: bytes) -> bytes | None:
    value = _value(row)
    if not isinstance(value, dict) or _is_item(value):
        return None if isinstance(value, dict) else row
    content = value.get("content")
    if not isinstance(content, list):
        return row
    kept = [part for part in content if not (isinstance(part, dict) and part.get("signature") == SIGNATURE)]
    if len(kept) == len(content):
        return row
    return _encode({**value, "content": kept}) if kept else None


def _is_item(value: dict[str, Any]) -> bool:
    return value.get("type") == "reasoning" and str(value.get("id")).startswith(ITEM)
