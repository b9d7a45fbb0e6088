"""The gateway's own thinking blocks, which show recalled text and are removed from resent histories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

SIGNATURE: Final = "palimpsest_recall"
"""Signature of a thinking block."""
ITEM: Final = f"rs_{SIGNATURE}_"
"""Prefix of the id of a reasoning item."""
_MARK: Final = SIGNATURE.encode()
_value: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def has_thoughts(text: bytes) -> bool:
    """Return whether a request may contain such blocks."""
    return _MARK in text


def strip_thoughts(rows: Iterable[bytes]) -> list[bytes]:
    """Return rows without these blocks, because providers reject foreign signatures."""
    return [kept for row in rows if (kept := _strip_thoughts(row) if has_thoughts(row) else row) is not None]


def _strip_thoughts(row: bytes) -> bytes | None:
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
