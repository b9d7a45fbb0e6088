"""References to places in a conversation: `m12`, `m12.1` (a block), `m12-m18` (a range), `c12.0` (a context block).

A context block is named by the message that it came with and its position, from 0.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MOST_MESSAGES: Final = 1_000
"""Largest range, in messages."""
_REFERENCE: Final = re.compile(
    r"\[?(?:m(?P<first>\d{1,9})(?:\.(?P<block>\d{1,6})|\s?[-\u2013]\s?m?(?P<last>\d{1,9}))?"
    r"|c(?P<seq>\d{1,9})\.(?P<position>\d{1,6}))\]?",
    re.IGNORECASE | re.ASCII,
)


class BadReferenceError(ValueError):
    """The reference is invalid, or its range is too large."""


class Reference(NamedTuple):
    """The messages `first..last` (seqs, inclusive), one block of a message, or one context block."""

    first: int
    last: int
    block: int | None = None
    is_context: bool = False

    @property
    def is_range(self) -> bool:
        """Return whether the reference names more than one message."""
        return self.last > self.first


def looks_like_reference(text: str) -> bool:
    """Return whether `text` has the syntax of a reference."""
    return _REFERENCE.fullmatch(text.strip()) is not None


def parse(text: str) -> Reference:
    """Return the reference in `text`. Raise BadReferenceError with the reason if it is invalid."""
    if (match := _REFERENCE.fullmatch(text.strip())) is None:
        raise BadReferenceError("Expected a reference: m12, m12.1 (a block of it), m12-m18 or c12.0 (a context block).")
    if match["seq"]:
        seq = int(match["seq"])
        return Reference(seq, seq, int(match["position"]), is_context=True)
    first, block = int(match["first"]), match["block"]
    last = int(match["last"]) if match["last"] else first
    if last < first:
        raise BadReferenceError("The range ends before it begins.")
    if last - first >= MOST_MESSAGES:
        raise BadReferenceError(f"A range has at most {MOST_MESSAGES:,} messages.")
    return Reference(first, last, int(block) if block else None)


def split_conversation(text: str) -> tuple[str, str]:
    """Split a reference across a user's conversations into the conversation and the place in it.

    Raises BadReferenceError if it names no conversation.
    """
    conversation, colon, place = text.strip().strip("[]").partition(":")
    if not colon:
        raise BadReferenceError(
            "Expected a conversation and a place in it: conv_…:m12, conv_…:m12.1 or conv_…:m12-m18."
        )
    return conversation, place


def user_reference(conversation: str, reference: str) -> str:
    """Return the reference of a place across a user's conversations."""
    return f"{conversation}:{reference}"


def message(seq: int) -> str:
    """Return the reference of a message."""
    return f"m{seq}"


def of_range(first: int, last: int) -> str:
    """Return the reference of the messages `first..last`, inclusive."""
    return message(first) if first == last else f"{message(first)}-{message(last)}"


def block(seq: int, index: int) -> str:
    """Return the reference of a message's block."""
    return f"m{seq}.{index}"


def context_block(seq: int, position: int) -> str:
    """Return the reference of the context block at `position` that came with message `seq`."""
    return f"c{seq}.{position}"


def span(first: int, last: int) -> str:
    """Return the reference of a range of messages, or of a single message."""
    return message(first) if first == last else f"m{first}-m{last}"
