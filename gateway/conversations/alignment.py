"""Alignment of a request's rows with those of a stored conversation, by what they mean.

Clients send a window of a long history, or the whole of it with another time in its first message. So the rows of a
request stand in their order among the stored ones, and what the client has left out is no edit.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gateway.conversations.meaning import RowMeaning

MOST_ROWS: Final = 4_000
"""Rows of either side that are searched for a common subsequence; some hundredths of a second."""
_LAST: Final = 3
"""Stored rows at the end that a request may lack: an answer that is regenerated, or that was broken off."""
_FIRST_KEPT: Final = 1
"""Rows that clients keep before a window of any size: the first message."""
_MOST_KEPT: Final = 8
_LEAST_GAP: Final = 8
"""Rows at least that are left out after more than the first message; fewer are taken out one by one, by an edit."""
_MOST_NOTES: Final = 2
"""Rows that a client puts in the place of those that it has left out."""


class StoredMeaning(NamedTuple):
    """A stored message in force."""

    seq: int
    meaning: RowMeaning


class Alignment(NamedTuple):
    """The rows of a request that are stored."""

    seqs: tuple[int, ...]
    """The seq of each, None of those that follow; -1 for a note of the client's own."""
    replaced_from: int | None
    """The first stored message behind them, which the request lacks."""
    lacking_through: int
    """The newest message before the last of them that the request lacks; -1 for none."""
    cleared_through: int
    """The newest one that the client has cleared, in whole or in part; -1 for none."""
    redated: tuple[int, ...]
    """Rows that the client has written anew with another date or time."""
    has_answer: bool
    """Whether an answer is among them."""
    stored_ids: Mapping[str, str]
    """Of calls that the client has named anew, by its own id the one that is stored."""

    @property
    def last_seq(self) -> int:
        """The seq of the last of them."""
        return max(self.seqs, default=-1)


def align(stored: Sequence[StoredMeaning], rows: Sequence[RowMeaning]) -> Alignment | None:
    """Return how a request's rows stand among stored ones; None if they are another history."""
    count = _count_common_rows(stored, rows)
    if count < len(stored) and count < len(rows):
        # The rows behind them are an edit, or the client has left out messages before it goes on.
        for last in range(len(stored), max(0, len(stored) - _LAST), -1):
            if (window := _find_window(stored, rows, last)) is not None:
                return window
    if not count:
        return None
    pairs = [(place, place) for place in range(count)]
    return _alignment_of(stored, rows, pairs, count, count)


def _count_common_rows(stored: Sequence[StoredMeaning], rows: Sequence[RowMeaning]) -> int:
    """Return how many rows both begin with.

    A first row that differs by a date or time counts if its answer is the same.
    """
    count = 0
    for row, other in zip(rows, stored, strict=False):
        if not _is_same_row(row, other.meaning, is_first=count == 0):
            break
        count += 1
    return 0 if count == 1 and not rows[0].is_same_as(stored[0].meaning) else count


def _is_same_row(row: RowMeaning, stored: RowMeaning, *, is_first: bool) -> bool:
    """Return whether a row is a stored one; the first one may have another date or time in it."""
    return row.is_same_as(stored) or (is_first and row.is_redated_from(stored))


def _find_window(stored: Sequence[StoredMeaning], rows: Sequence[RowMeaning], last: int) -> Alignment | None:
    """Return the alignment in which the request's rows go on to the stored one before `last`, None for none."""
    end = stored[last - 1].meaning
    through = next((at for at in range(len(rows) - 1, -1, -1) if rows[at].is_same_as(end)), None)
    if through is None or any(row.is_compacted for row in rows):
        return None
    first = max(0, last - MOST_ROWS)
    others, own = stored[first:last], rows[: through + 1]
    if len(own) > MOST_ROWS:
        return None
    pairs = [(place, at + first) for place, at in _find_common_subsequence(own, others)]
    has_first = _is_same_row(rows[0], stored[0].meaning, is_first=True)
    if first and has_first and pairs[:1] != [(0, 0)]:
        pairs = [(0, 0), *(pair for pair in pairs if pair[0] > 0)]
    if not pairs or pairs[-1] != (through, last - 1) or not _is_window(stored, rows, pairs, through):
        return None
    return _alignment_of(stored, rows, pairs, through + 1, last)


def _is_window(
    stored: Sequence[StoredMeaning], rows: Sequence[RowMeaning], pairs: Sequence[tuple[int, int]], through: int
) -> bool:
    """Return whether what a request lacks was left out to save room, and nothing was changed."""
    if not all(_is_same_row(rows[place], stored[at].meaning, is_first=place == 0) for place, at in pairs):
        return False
    known = {place for place, _ in pairs}
    notes = [place for place in range(through) if place not in known and not rows[place].says_nothing]
    if len(notes) > _MOST_NOTES or not all(rows[place].is_note for place in notes):
        return False
    # For each stretch of left out messages: the rows kept before it, and its length. Tool rounds may go anywhere.
    gaps = []
    for (place, at), (_, next_at) in itertools.pairwise([(-1, -1), *pairs]):
        lacking = [row for row in stored[at + 1 : next_at] if not row.meaning.says_nothing]
        if lacking and not all(row.meaning.is_tool_traffic for row in lacking):
            gaps.append((place + 1, len(lacking)))
    return len(gaps) <= 1 and all(
        kept <= _FIRST_KEPT or (kept <= _MOST_KEPT and size >= _LEAST_GAP) for kept, size in gaps
    )


def _alignment_of(
    stored: Sequence[StoredMeaning],
    rows: Sequence[RowMeaning],
    pairs: Sequence[tuple[int, int]],
    count: int,
    last: int,
) -> Alignment:
    """Return the alignment of the first `count` rows of a request with the first `last` stored ones.

    `pairs` are the places of the rows that are the same.
    """
    at_place = dict(pairs)
    seqs = tuple(stored[at_place[place]].seq if place in at_place else -1 for place in range(count))
    there = {at for _, at in pairs}
    lacking = [stored[at].seq for at in range(last) if at not in there]
    cleared, redated = [], []
    for place, at in pairs:
        row, other = rows[place], stored[at].meaning
        if row.exact == other.exact:
            continue
        if row.parts != other.parts:
            cleared.append(stored[at].seq)
        else:
            redated.append(place)
    return Alignment(
        seqs,
        stored[last].seq if last < len(stored) else None,
        max(lacking, default=-1),
        max(cleared, default=-1),
        tuple(redated),
        any(rows[place].role == "assistant" for place, _ in pairs),
        _map_call_ids((rows[place].call_ids, stored[at].meaning.call_ids) for place, at in pairs),
    )


def _map_call_ids(named: Iterable[tuple[Sequence[str], Sequence[str]]]) -> dict[str, str]:
    """Return the stored id of each call by the other one that the client has for it."""
    pairs = (zip(own, other, strict=True) for own, other in named if own != other and len(own) == len(other))
    return {mine: theirs for each in pairs for mine, theirs in each if mine != theirs}


def _find_common_subsequence(rows: Sequence[RowMeaning], stored: Sequence[StoredMeaning]) -> list[tuple[int, int]]:
    """Return the places of a longest common subsequence, the newest where there are several.

    By Hyyrö's bit-parallel algorithm: a step of integer arithmetic a row, on as many bits as there are stored rows.
    """
    size = len(stored)
    masks: dict[bytes, int] = {}
    for bit, other in enumerate(reversed(stored)):
        masks[other.meaning.undated] = masks.get(other.meaning.undated, 0) | 1 << bit
    every, bits = (1 << size) - 1, (1 << size) - 1
    steps = []
    for row in reversed(rows):
        matching = bits & masks.get(row.undated, 0)
        bits = ((bits + matching) | (bits - matching)) & every
        steps.append(bits)
    pairs = []
    row_at, bit_at = len(rows), size
    while row_at and bit_at:
        mask = 1 << (bit_at - 1)
        if steps[row_at - 1] & mask:
            bit_at -= 1
            continue
        row_at -= 1
        if not row_at or steps[row_at - 1] & mask:
            bit_at -= 1
            pairs.append((len(rows) - 1 - row_at, size - 1 - bit_at))
    return pairs
