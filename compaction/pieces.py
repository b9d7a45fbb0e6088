"""Pieces: how many messages a view has where several stored ones are what the Messages API has as one.

In Chat Completions each result is a message of its own, and in Responses each call and each text as well. What a policy
says of messages holds for all shapes alike only if an answer counts as one, and its results as another; messages of the
Messages API count as they are stored.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from compaction.messages import is_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.view import ViewMessage


def goes_on(before: ViewMessage, message: ViewMessage) -> bool:
    """Return whether a message is a piece of the same one as the message before it; each request is one by itself."""
    return before.role == message.role and not is_request(message.role, message.content)


def beginnings(view: Sequence[ViewMessage], *, in_pieces: bool) -> list[bool]:
    """Return for each stored message whether it begins one that counts."""
    if not in_pieces:
        return [True] * len(view)
    return [True] * bool(view) + [not goes_on(before, message) for before, message in pairwise(view)]


def count_messages(view: Sequence[ViewMessage], *, in_pieces: bool) -> int:
    """Return how many messages a view has."""
    return sum(beginnings(view, in_pieces=in_pieces))


def places(view: Sequence[ViewMessage], *, in_pieces: bool) -> list[int]:
    """Return for each stored message the number of the one that it belongs to, from 0."""
    return [count - 1 for count in accumulate(beginnings(view, in_pieces=in_pieces))]


def newest(view: Sequence[ViewMessage], count: int, *, in_pieces: bool) -> int:
    """Return how many stored messages the newest `count` messages of a view are."""
    starts = [index for index, begins in enumerate(beginnings(view, in_pieces=in_pieces)) if begins]
    return len(view) - (starts[-count] if count <= len(starts) else 0)
