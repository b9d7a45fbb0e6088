"""References: how a place in a conversation is named, `m12`, `m12.1` (a block), `m12-m18` (a range)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MOST_MESSAGES: Final = 1_000
"""Messages of a range."""
_REFERENCE: Final = re.compile(r"\[?m(\d{1,9})(?:\.(\d{1,6})|\s?[-\u2013]\s?m?(\d{1,9}))?\]?", re.IGNORECASE)


class BadReferenceError(ValueError):
    """No reference, or one to more than may be had at a time."""


class Reference(NamedTuple):
    """The messages `first..last` (seqs, inclusive), or the block `block` of one."""

    first: int
    last: int
    block: int | None = None

    @property
    def is_range(self) -> bool:
        """Tell whether it names more than one message."""
        return self.last > self.first


def is_written_like_one(text: str) -> bool:
    """Tell whether a text is written as a reference is, be it to something or not."""
    return _REFERENCE.fullmatch(text.strip()) is not None


def parse(text: str) -> Reference:
    """Return the reference that `text` is; raise BadReferenceError with what is wrong with it."""
    if (found := _REFERENCE.fullmatch(text.strip())) is None:
        raise BadReferenceError("Expected a reference: m12, m12.1 (a block of it) or m12-m18.")
    first, block = int(found[1]), found[2]
    last = int(found[3]) if found[3] else first
    if last < first:
        raise BadReferenceError("The range ends before it begins.")
    if last - first >= MOST_MESSAGES:
        raise BadReferenceError(f"A range has at most {MOST_MESSAGES:,} messages.")
    return Reference(first, last, int(block) if block else None)


def conversation_and_place(text: str) -> tuple[str, str]:
    """Return the conversation and the place in it that a reference in a user's conversations names.

    Raises BadReferenceError where it names no conversation.
    """
    conversation, colon, place = text.strip().strip("[]").partition(":")
    if not colon:
        raise BadReferenceError(
            "Expected a conversation and a place in it: conv_…:m12, conv_…:m12.1 or conv_…:m12-m18."
        )
    return conversation, place


def of_conversation(conversation: str, reference: str) -> str:
    """Return how a place is named among the conversations of a user."""
    return f"{conversation}:{reference}"


def message(seq: int) -> str:
    """Return the reference of a message."""
    return f"m{seq}"


def block(seq: int, index: int) -> str:
    """Return the reference of a message's block."""
    return f"m{seq}.{index}"


def span(first: int, last: int) -> str:
    """Return the reference of a range of messages, of one where it is but one."""
    return message(first) if first == last else f"m{first}-m{last}"
