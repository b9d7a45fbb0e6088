"""Two texts compared: lines first, then the words of lines that changed."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Change = Literal["same", "out", "in", "skip"]

_WORDS: Final = re.compile(r"\s+|\w+|[^\w\s]")
_WORDS_COMPARED: Final = 1_500
"""Words of a stretch up to which its words are compared; the time grows with the square."""
_CHARS_COMPARED: Final = 200_000
"""Characters of changed lines in all up to which their words are compared."""
_LINES_COMPARED: Final = 3_000
_CONTEXT_CHARS: Final = 160
"""Characters of an unchanged stretch that are shown on either side of a change."""


class Piece(NamedTuple):
    """A stretch of text that is the same, only in the old text (out), only in the new one (in), or left out here."""

    change: Change
    text: str


def compare(old: str, new: str) -> list[Piece]:
    """Return the pieces that lead from `old` to `new`; long unchanged stretches show their ends."""
    return [short for piece in _joined(_by_lines(old, new)) for short in _shortened(piece)]


def _by_lines(old: str, new: str) -> Iterator[Piece]:
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    if max(len(before), len(after)) > _LINES_COMPARED:
        yield from _whole(old, new)
        return
    room = _CHARS_COMPARED
    # What is in many lines begins no stretch that is the same: a few lines again and again would take minutes.
    for tag, start, end, new_start, new_end in SequenceMatcher(None, before, after).get_opcodes():
        left, right = "".join(before[start:end]), "".join(after[new_start:new_end])
        if tag == "equal":
            yield Piece("same", left)
            continue
        room -= len(left) + len(right)
        yield from _by_words(left, right) if room >= 0 else _whole(left, right)


def _by_words(old: str, new: str) -> Iterator[Piece]:
    before, after = _WORDS.findall(old), _WORDS.findall(new)
    if not before or not after or max(len(before), len(after)) > _WORDS_COMPARED:
        yield from _whole(old, new)
        return
    matcher = SequenceMatcher(None, before, after)
    if matcher.ratio() < 0.3:  # noqa: PLR2004 - below it, two texts share little but spaces and small words
        yield from _whole(old, new)
        return
    for tag, start, end, new_start, new_end in matcher.get_opcodes():
        if tag == "equal":
            yield Piece("same", "".join(before[start:end]))
        else:
            yield from _whole("".join(before[start:end]), "".join(after[new_start:new_end]))


def _whole(old: str, new: str) -> Iterator[Piece]:
    if old:
        yield Piece("out", old)
    if new:
        yield Piece("in", new)


def _joined(pieces: Iterator[Piece]) -> list[Piece]:
    pieces_joined: list[Piece] = []
    for piece in pieces:
        if pieces_joined and pieces_joined[-1].change == piece.change:
            pieces_joined[-1] = Piece(piece.change, pieces_joined[-1].text + piece.text)
        else:
            pieces_joined.append(piece)
    return pieces_joined


def _shortened(piece: Piece) -> Sequence[Piece]:
    hidden = len(piece.text) - 2 * _CONTEXT_CHARS
    if piece.change != "same" or hidden <= _CONTEXT_CHARS:
        return [piece]
    return [
        Piece("same", piece.text[:_CONTEXT_CHARS]),
        Piece("skip", f"{hidden:,} characters are the same"),
        Piece("same", piece.text[-_CONTEXT_CHARS:]),
    ]
