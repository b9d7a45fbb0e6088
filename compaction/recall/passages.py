"""Passages: hits and what belongs to them, as texts under a number of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from compaction.credentials.masking import mask_content, mask_text
from compaction.recall import references
from compaction.recall.parts import QuotedPart, call_names, is_medium, parts_of
from compaction.recall.segments import Searchable, segments
from compaction.recall.words import tokens
from compaction.tokens import CHARS_PER_TOKEN, text_weight

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from compaction.recall.ranking import Hit
    from compaction.recall.segments import Segment

    Focus = Callable[[int, str], Sequence[tuple[int, float]]]
    """Places in a text of the message with a seq that were asked for, with their weights."""

NEIGHBOURS: Final = 1
"""Messages on each side of a hit that come with it: a question and its answer, a call and its result."""
EXCERPT_CHARS: Final = 600
"""Characters, by weight, of a message that comes whole; of a longer one comes as much."""
NEAREST_CHARS: Final = 160
"""Characters of the words beside an image or a file that come with what it is."""
_MISSES: Final = 3
"""Hits without room for them after which no smaller one is tried."""
_SAME_IN_TEN: Final = 9
"""Of ten words that two near-duplicates have, those that both have."""
_LEAST_WORDS: Final = 4
"""Words from which on messages can be duplicates; 'Thank you.' is one of nothing."""
_COMPARED_CHARS: Final = 2_400
"""Characters at the beginning of messages by which duplicates are recognized."""
CONTEXT_BLOCK: Final = "context_block"
"""Kind of the part that a context block is."""
_BOUNDARY_CHARS: Final = 60
"""Characters by which an excerpt is moved to begin where a line or a sentence does."""


class StoredText(NamedTuple):
    """A message as it is stored."""

    seq: int
    role: str
    content: str
    """As JSON."""
    created_at: datetime | None
    """When it was said; None where nobody knows."""
    name: str = ""
    """Of who wrote it, where it says so and that was asked for."""


class QuotedMessage(NamedTuple):
    """A message with its parts, what recall does not give back left out."""

    seq: int
    role: str
    created_at: datetime | None
    """When it was said; None where nobody knows."""
    parts: list[QuotedPart]
    name: str = ""
    """Of who wrote it, "" where it does not say."""


def quoted(rows: Iterable[StoredText], *, masked: bool = False) -> dict[int, QuotedMessage]:
    """Return messages by seq, in their order; results are named after the calls before them.

    With `masked` their credentials are masked.
    """
    names: dict[str, str] = {}
    messages = {}
    for row in rows:
        content = msgspec.json.decode(row.content)
        if masked:
            content = mask_content(content, row.seq)
        messages[row.seq] = QuotedMessage(row.seq, row.role, row.created_at, parts_of(content, names), row.name)
        if row.role == "assistant":
            names |= call_names(content)
    return {seq: _with_nearest_words(message, messages) for seq, message in messages.items()}


def _with_nearest_words(message: QuotedMessage, others: Mapping[int, QuotedMessage]) -> QuotedMessage:
    """Return a message whose images and files come with the words beside them: its own, else its neighbour's."""
    if not any(is_medium(part.kind, part.text) for part in message.parts):
        return message
    parts = []
    for at, part in enumerate(message.parts):
        if is_medium(part.kind, part.text):
            around = (*message.parts[at + 1 :], *reversed(message.parts[:at]))
            near = (each for seq in (message.seq + 1, message.seq - 1) if seq in others for each in others[seq].parts)
            words = next((each.text for each in (*around, *near) if each.kind == "text" and each.text.strip()), "")
            said = " ".join(words[: 2 * NEAREST_CHARS].split())[:NEAREST_CHARS]
            parts.append(part._replace(text=f"{part.text}; beside it: {said}") if said else part)
        else:
            parts.append(part)
    return message._replace(parts=parts)


def quoted_context(row: Any, *, masked: bool = False) -> QuotedMessage:
    """Return a context block as the one part of the message that it came with.

    The row has seq, position, source, text, and created_at. With `masked` its credentials are masked.
    """
    text = mask_text(row.text, row.seq) if masked else row.text
    part = QuotedPart(row.position, CONTEXT_BLOCK, text, row.source, is_context=True)
    return QuotedMessage(row.seq, "user", row.created_at, [part])


def segments_of(messages: Mapping[int, QuotedMessage], after: int = -1) -> list[Segment]:
    """Return the segments of the messages with a seq over `after`."""
    return list(
        segments(
            Searchable(seq, message.role, "\n".join(part.text for part in message.parts))
            for seq, message in messages.items()
            if seq > after
        )
    )


class Excerpt(NamedTuple):
    """One part as it is given back: `text` starts at `offset` of its `characters`."""

    original: QuotedMessage
    part: QuotedPart
    text: str
    offset: int
    characters: int

    @property
    def ref(self) -> str:
        """Return how it is named."""
        name = references.context_block if self.part.is_context else references.block
        return name(self.original.seq, self.part.block)


class Passage(NamedTuple):
    """Messages in a row."""

    first_seq: int
    last_seq: int
    score: float
    excerpts: list[Excerpt]

    @property
    def ref(self) -> str:
        """Return how it is named; a context block is a passage by itself."""
        first = self.excerpts[0]
        return first.ref if first.part.is_context else references.span(self.first_seq, self.last_seq)

    @property
    def seqs(self) -> list[int]:
        """Return the seqs of the messages in it, none for a context block."""
        return list(dict.fromkeys(each.original.seq for each in self.excerpts if not each.part.is_context))


class Packed(NamedTuple):
    """What there was room for."""

    passages: list[Passage]
    tokens: int
    more: bool


def tokens_of(text: str) -> int:
    """Return the tokens of a text, rounded up."""
    return -(-text_weight(text) // CHARS_PER_TOKEN)


class Repetitions:
    """Texts by their words, and whether one says again what another said."""

    def __init__(self) -> None:
        self._seen: dict[str, list[frozenset[str]]] = {}

    def has(self, words: frozenset[str]) -> bool:
        """Tell whether nearly these words were there already; if not, they are from now on."""
        if len(words) < _LEAST_WORDS:
            return False
        # Of two sets that have so much in common, each has one of the other's first words, whatever the order is. Long
        # words are rare, so few sets are compared: comparing all of them takes seconds where an answer has a thousand.
        first = sorted(words, key=lambda word: (-len(word), word))[: len(words) * (10 - _SAME_IN_TEN) // 10 + 1]
        if any(_is_same(words, other) for word in first for other in self._seen.get(word, ())):
            return True
        for word in first:
            self._seen.setdefault(word, []).append(words)
        return False


class _Packing:
    """What has been chosen so far."""

    def __init__(
        self, hits: Sequence[Hit], originals: Mapping[int, QuotedMessage], max_tokens: int, focus: Focus
    ) -> None:
        self.chosen: dict[int, list[Excerpt]] = {}
        self.room = max_tokens
        self._scores = dict(hits)
        self._originals = originals
        self._longest = min(EXCERPT_CHARS, max_tokens * CHARS_PER_TOKEN)
        self._focus = focus
        self._seen = Repetitions()

    def repeats(self, seq: int) -> bool:
        """Tell whether a message says again what a better hit says; if not, it is one that others may repeat."""
        text = "\n".join(part.text for part in self._originals[seq].parts)
        return self._seen.has(frozenset(tokens(text[:_COMPARED_CHARS])))

    def take(self, seq: int) -> bool:
        """Choose a message, as far as it can be recalled; tell whether there was room for it."""
        if seq in self.chosen or (original := self._originals.get(seq)) is None:
            return True
        excerpts = _excerpts(original, self._longest, self._focus)
        needed = sum(tokens_of(excerpt.text) for excerpt in excerpts)
        if needed > self.room:
            return False
        if excerpts:
            self.room -= needed
            self.chosen[seq] = excerpts
        return True

    def begins_another(self, seq: int) -> bool:
        """Tell whether a message would be a passage of its own."""
        return not self.chosen.keys() & {seq - 1, seq, seq + 1}

    def passages(self) -> list[Passage]:
        """Return what was chosen, the best first, of equals the newest."""
        packed = []
        for run in _runs(self.chosen):
            score = max(self._scores.get(seq, 0.0) for seq in run)
            packed.append(Passage(run[0], run[-1], score, [excerpt for seq in run for excerpt in self.chosen[seq]]))
        return sorted(packed, key=lambda passage: (-passage.score, -passage.last_seq))


def pack(
    hits: Sequence[Hit], originals: Mapping[int, QuotedMessage], *, max_tokens: int, limit: int, focus: Focus
) -> Packed:
    """Return passages of at most `max_tokens`, at most `limit` of them, made of the best hits and their neighbours.

    Long messages are cut to what is around the places that `focus` finds. Hits whose originals are not there are
    passed over; near-duplicates of a better hit are left out.
    """
    packing = _Packing(hits, originals, max_tokens, focus)
    misses, more = 0, False
    for seq, _ in hits:
        if seq in packing.chosen or seq not in originals or packing.repeats(seq):
            continue
        if packing.begins_another(seq) and len(_runs(packing.chosen)) >= limit:
            more = True
            continue
        if packing.take(seq):
            for neighbour in (at for distance in range(1, NEIGHBOURS + 1) for at in (seq + distance, seq - distance)):
                if neighbour in originals and neighbour not in packing.chosen and not packing.repeats(neighbour):
                    packing.take(neighbour)
            continue
        more, misses = True, misses + 1
        if misses >= _MISSES:
            break
    return Packed(packing.passages(), max_tokens - packing.room, more)


def read(originals: Sequence[QuotedMessage], *, block: int | None, offset: int, max_tokens: int) -> Packed:
    """Return originals in their order, from character `offset` of their texts on, as far as `max_tokens` go."""
    runs: list[list[Excerpt]] = []
    room, skip, more, last = max_tokens * CHARS_PER_TOKEN, offset, False, None
    for original in originals:
        for part in original.parts:
            if block is not None and part.block != block:
                continue
            if skip and skip >= len(part.text):
                skip -= len(part.text)
                continue
            text = _fitting(part.text[skip:], room)
            if part.text[skip:] and not text:
                more = True
                continue
            if last is None or original.seq > last + 1:
                runs.append([])
            last = original.seq
            runs[-1].append(Excerpt(original, part, text, skip, len(part.text)))
            room -= tokens_of(text) * CHARS_PER_TOKEN
            more = more or skip + len(text) < len(part.text)
            skip = 0
    passages = [Passage(run[0].original.seq, run[-1].original.seq, 0.0, run) for run in runs]
    return Packed(passages, sum(tokens_of(excerpt.text) for run in runs for excerpt in run), more)


def _fitting(text: str, room: int) -> str:
    """Return as much of the beginning of `text` as weighs at most `room` characters."""
    if text_weight(text) <= room:
        return text
    low, high = 0, min(len(text), room)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if text_weight(text[:middle]) <= room else (low, middle - 1)
    return text[:low]


def _runs(chosen: Mapping[int, object]) -> list[list[int]]:
    runs: list[list[int]] = []
    for seq in sorted(chosen):
        if runs and runs[-1][-1] == seq - 1:
            runs[-1].append(seq)
        else:
            runs.append([seq])
    return runs


def _is_same(one: frozenset[str], other: frozenset[str]) -> bool:
    common = len(one & other)
    return 10 * common >= _SAME_IN_TEN * (len(one) + len(other) - common)


def _excerpts(original: QuotedMessage, most: int, focus: Focus) -> list[Excerpt]:
    """Return a message whole, or of each part what was asked for: `most` characters by weight, shared between them."""
    parts = [part for part in original.parts if part.text]
    if sum(text_weight(part.text) for part in parts) <= most:
        return [Excerpt(original, part, part.text, 0, len(part.text)) for part in parts]
    places = [list(focus(original.seq, part.text)) for part in parts]
    named = [part for part, part_places in zip(parts, places, strict=True) if part_places] or parts[:1]
    excerpts = []
    for part, at in zip(parts, places, strict=True):
        if part in named:
            share = max(1, most // len(named))
            start = _best_start(part.text, at, share)
            excerpts.append(Excerpt(original, part, _fitting(part.text[start:], share), start, len(part.text)))
    return excerpts


def _best_start(text: str, places: Sequence[tuple[int, float]], width: int) -> int:
    """Return where an excerpt of `width` characters has the most of what was asked for."""
    best, start, weight, first = 0.0, 0, 0.0, 0
    lead = width // 4
    for at, own in places:
        weight += own
        while places[first][0] < at - (width - lead):
            weight -= places[first][1]
            first += 1
        if weight > best + 1e-9:
            best, start = weight, max(0, places[first][0] - lead)
    start = min(start, max(0, len(text) - width))
    if start == 0:
        return 0
    near = text[start : start + _BOUNDARY_CHARS]
    for boundary in ("\n", ". ", " "):
        if (index := near.find(boundary)) >= 0:
            return start + index + len(boundary)
    return start
