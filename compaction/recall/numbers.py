"""Numbers that order the messages of several conversations.

A number combines the index of a conversation and a seq. For the first conversation it equals the seq. Messages of two
conversations never have adjacent numbers.
"""

from __future__ import annotations

from typing import Final

_SEQ_BITS: Final = 32
"""Bits of a seq. Postgres stores it in 31, so the numbers of two conversations are never adjacent."""


def message_number(conversation: int, seq: int) -> int:
    """Return the number of the message `seq` in the conversation with the index `conversation`, from 0."""
    return conversation << _SEQ_BITS | seq


def conversation_of(number: int) -> int:
    """Return the index of a message's conversation."""
    return number >> _SEQ_BITS


def seq_of(number: int) -> int:
    """Return a message's seq."""
    return number & ((1 << _SEQ_BITS) - 1)


def neighbour_numbers(number: int, before: int, after: int) -> list[int]:
    """Return the numbers from `before` messages before to `after` messages after, within the same conversation."""
    own = conversation_of(number)
    return [each for each in range(number - before, number + after + 1) if conversation_of(each) == own]
