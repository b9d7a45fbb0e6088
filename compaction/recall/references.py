"""References: how a place in a conversation is named, `m12`, `m12.1` (a block), `m12-m18` (a range).

A context block, which is apart from the messages, is named by the message that it came with: `c12.0` is the first.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MOST_MESSAGES: Final = 1_000
"""Messages of a range."""
_REFERENCE: Final = re.compile(
    r"\[?(?:m(?P<first>\d{1,9})(?:\.(?P<block>\d{1,6})|\s?[-\u2013]\s?m?(?P<last>\d{1,9}))?"
    r"|c(?P<seq>\d{1,9})\.(?P<position>\d{1,6}))\]?",
    re.IGNORECASE | re.ASCII,
)


class BadReferenceError(ValueError):
    """No reference, or one to more than may be had at a time."""


class Reference(NamedTuple):
    """The messages `first..last` (seqs, inclusive), the block `block` of one, or a context block that came with it."""

    first: int
    last: int
    block: int | None = None
    is_context: bool = False

    @property
    def is_range(self) -> bool:
        """Tell whether it names more than one message."""
        return self.last > self.first


def is_written_like_one(text: str) -> bool:
    """Tell whether a text is written as a reference is, be it to something or not."""
    return _REFERENCE.fullmatch(text.strip()) is not None


def parse(text: str) -> Reference:
    """Return the reference that `text` is; raise BadReferenceError with what is wrong with it."""
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


def of_range(first: int, last: int) -> str:
    """Return the reference of the messages from one to another, both included."""
    return message(first) if first == last else f"{message(first)}-{message(last)}"


def block(seq: int, index: int) -> str:
    """Return the reference of a message's block."""
    return f"m{seq}.{index}"


def context_block(seq: int, position: int) -> str:
    """Return the reference of the context block at a position of those that came with a message."""
    return f"c{seq}.{position}"


def span(first: int, last: int) -> str:
    """Return the reference of a range of messages, of one where it is but one."""
    return message(first) if first == last else f"m{first}-m{last}"
