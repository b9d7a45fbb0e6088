"""Messages of several conversations in one order: a number says which conversation, and which of its messages.

The numbers of one conversation by itself are its seqs. Those of two conversations are never neighbours.
"""

from __future__ import annotations

from typing import Final

_SEQ_BITS: Final = 32
"""Bits of a seq, which Postgres keeps in 31: no message beside another conversation's is its neighbour."""


def number(conversation: int, seq: int) -> int:
    """Return the number of a message in a conversation, itself numbered from 0 on."""
    return conversation << _SEQ_BITS | seq


def conversation_of(number: int) -> int:
    """Return which conversation a message is of."""
    return number >> _SEQ_BITS


def seq_of(number: int) -> int:
    """Return a message's place in its conversation."""
    return number & ((1 << _SEQ_BITS) - 1)


def around(number: int, before: int, after: int) -> list[int]:
    """Return the numbers around a message, those `before` it, its own and those `after` it, of its conversation."""
    own = conversation_of(number)
    return [each for each in range(number - before, number + after + 1) if conversation_of(each) == own]
