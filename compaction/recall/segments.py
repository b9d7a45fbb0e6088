"""Segments: consecutive messages of a conversation with their terms, as search reads them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from compaction.recall.words import language_of, terms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MOST_MESSAGES: Final = 128
"""Messages of a segment. Places and counts take one byte each."""
MOST_CHARS: Final = 200_000
"""Characters of a segment's text. A single longer message is a segment of its own."""
WORTH_MESSAGES: Final = 32
"""Messages from which a search stores a segment that it built, because building it again takes longer."""
WORTH_TERMS: Final = 2_500
"""Terms from which a segment with fewer messages is stored."""
WORTH_CHARS: Final = 32_000
"""Characters of prose with about WORTH_TERMS terms."""
_MOST_COUNT: Final = 255


class Searchable(NamedTuple):
    """The searchable text of a message."""

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
    """Number of terms in each message."""
    postings: dict[str, bytes]
    """For each term, the place and the count of every message that contains it."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Segment).decode


def encode_segment(segment: Segment) -> bytes:
    """Encode a segment for storage."""
    return _encode(segment)


def decode_segment(stored: bytes) -> Segment:
    """Decode a stored segment."""
    return _decode(stored)


def build_segments(messages: Iterable[Searchable]) -> Iterator[Segment]:
    """Yield the segments of `messages`, which are in the conversation's order. Messages without text are skipped."""
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


def segments_worth_storing(segments: Sequence[Segment], least: int = MOST_MESSAGES) -> Sequence[Segment]:
    """Return `segments` without a small last one.

    A full segment never changes. One with `least` messages or WORTH_TERMS terms is stored because building it again
    costs more.
    """
    if not segments or len(segments[-1].seqs) >= least or sum(segments[-1].lengths) >= WORTH_TERMS:
        return segments
    return segments[:-1]
