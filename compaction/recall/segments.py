"""Segments: stretches of a conversation with their terms, as a search reads them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from compaction.recall.words import language_of, terms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MOST_MESSAGES: Final = 128
"""Messages of a segment; places and counts are one byte each."""
MOST_CHARS: Final = 200_000
"""Characters of a segment's text, unless one message alone has more."""
WORTH_MESSAGES: Final = 32
"""Messages from which on a search stores what it had to make: the next one would make it again, which takes longer."""
WORTH_TERMS: Final = 2_500
"""Terms from which on a segment is stored that has fewer messages, by a search or by a worker."""
WORTH_CHARS: Final = 32_000
"""Characters of prose that have about as many."""
_MOST_COUNT: Final = 255


class Searchable(NamedTuple):
    """A message's text, all parts of it that may be found."""

    seq: int
    role: str
    text: str


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """The terms of up to MOST_MESSAGES messages."""

    language: str
    seqs: list[int]
    roles: str
    """`u` or `a` for each message."""
    lengths: list[int]
    """Terms of each message."""
    postings: dict[str, bytes]
    """For each term, place and count of every message that has it."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Segment).decode


def encoded(segment: Segment) -> bytes:
    """Return a segment as it is stored."""
    return _encode(segment)


def decoded(stored: bytes) -> Segment:
    """Return a stored segment."""
    return _decode(stored)


def segments(messages: Iterable[Searchable]) -> Iterator[Segment]:
    """Yield the segments of messages that are in the conversation's order; those without text are in none."""
    waiting: list[Searchable] = []
    characters = 0
    for message in messages:
        if not message.text:
            continue
        if len(waiting) == MOST_MESSAGES or (waiting and characters + len(message.text) > MOST_CHARS):
            yield _segment(waiting)
            waiting, characters = [], 0
        waiting.append(message)
        characters += len(message.text)
    if waiting:
        yield _segment(waiting)


def _segment(messages: list[Searchable]) -> Segment:
    language = language_of("\n".join(message.text[:1_000] for message in messages))
    postings: dict[str, bytearray] = {}
    lengths = []
    for place, message in enumerate(messages):
        counts = Counter(terms(message.text, language))
        lengths.append(counts.total())
        for term, count in counts.items():
            postings.setdefault(term, bytearray()).extend((place, min(count, _MOST_COUNT)))
    return Segment(
        language,
        [message.seq for message in messages],
        "".join(message.role[0] for message in messages),
        lengths,
        {term: bytes(places) for term, places in postings.items()},
    )


def closed(segments: Sequence[Segment], least: int = MOST_MESSAGES) -> Sequence[Segment]:
    """Return those of segments in a row that are worth storing: all but a last one that is small in every respect.

    To a full one later messages add nothing; one of `least` messages, or of many terms, is stored because reading its
    messages again costs more.
    """
    if not segments or len(segments[-1].seqs) >= least or sum(segments[-1].lengths) >= WORTH_TERMS:
        return segments
    return segments[:-1]
