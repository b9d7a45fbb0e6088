"""What of an original a query asks for: the pieces that are about it, in the order of the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from compaction.recall.passages import tokens_of
from compaction.recall.ranking import rank
from compaction.recall.segments import Searchable, segments

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_TOKENS: Final = 2_000
"""Of what a query gives back; a text that is no longer comes whole."""
_PIECE_CHARS: Final = 400
"""A piece ends with the line that brings it to this; a longer line is several."""


def passages(text: str, query: str) -> str:
    """Return the pieces of a text that a query is about, the whole where it is short or nothing in it is."""
    if not query.strip() or tokens_of(text) <= MOST_TOKENS:
        return text
    pieces = list(_pieces(text))
    searched = segments(Searchable(number, "user", piece) for number, piece in enumerate(pieces))
    room, chosen = MOST_TOKENS, set[int]()
    for hit in rank(list(searched), query).hits:
        size = tokens_of(pieces[hit.seq])
        if size > room:
            break
        chosen.add(hit.seq)
        room -= size
    return _joined(pieces, chosen) if chosen else text


def _pieces(text: str) -> Iterator[str]:
    piece = ""
    for line in text.splitlines(keepends=True):
        for start in range(0, len(line), _PIECE_CHARS):
            piece += line[start : start + _PIECE_CHARS]
            if len(piece) >= _PIECE_CHARS:
                yield piece
                piece = ""
    if piece:
        yield piece


def _joined(pieces: list[str], chosen: set[int]) -> str:
    """Return the chosen pieces, with how many characters are left out between them."""
    every: list[str] = []
    left_out = 0
    for number, piece in enumerate(pieces):
        if number not in chosen:
            left_out += len(piece)
            continue
        every += [*_gap(left_out), piece]
        left_out = 0
    return "".join([*every, *_gap(left_out)])


def _gap(characters: int) -> list[str]:
    return [f"\n[{characters:,} characters left out]\n"] if characters else []
