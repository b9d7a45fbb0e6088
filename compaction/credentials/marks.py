"""Marks: what stands in the place of a credential, and how it is told from other text."""

from __future__ import annotations

import re
from typing import Final

_OPENS: Final = "[secret: "
_MARK: Final = re.compile(r"\[secret: [a-z0-9][a-z0-9 ]{0,40}(?:, m\d{1,10})?\]")


def mark_for(kind: str, seq: int | None) -> str:
    """Return what stands for a credential of message `seq`, without a reference where there is no message."""
    return f"[secret: {kind}]" if seq is None or seq < 0 else f"[secret: {kind}, m{seq}]"


def has_mark(text: str) -> bool:
    """Return whether a text has a mark."""
    return _OPENS in text and _MARK.search(text) is not None


def without_marks(text: str) -> str:
    """Return a text with a space in the place of each mark."""
    return _MARK.sub(" ", text) if _OPENS in text else text


def blank_marks(text: str) -> str:
    """Return a text of the same length in which a mark reads as a value that is left out."""
    return _MARK.sub(lambda mark: f"[{'*' * (len(mark[0]) - 2)}]", text) if _OPENS in text else text


def spans(text: str) -> list[tuple[int, int]]:
    """Return where marks stand."""
    return [mark.span() for mark in _MARK.finditer(text)] if _OPENS in text else []
