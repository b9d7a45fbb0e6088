"""Passages: hits with their neighbouring messages, as text within a token budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from compaction.credentials.masking import mask_content, mask_text
from compaction.recall import references
from compaction.recall.parts import QuotedPart, call_names, is_medium, parts_of
from compaction.recall.segments import Searchable, build_segments
from compaction.recall.words import tokens
from compaction.tokens import CHARS_PER_TOKEN, text_weight

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from compaction.recall.ranking import Hit
    from compaction.recall.segments import Segment

    Focus = Callable[[int, str], Sequence[tuple[int, float]]]
    """Return the places of a message's text that match the query, with their weights."""

NEIGHBOURS: Final = 1
"""Messages on each side of a hit that come with it, such as a question's answer or a call's result."""
EXCERPT_CHARS: Final = 600
"""Weighted characters up to which a message is quoted whole. Longer messages are cut to this length."""
NEAREST_CHARS: Final = 160
"""Characters of nearby words that are added to the description of an image or a file."""
_MISSES: Final = 3
"""Hits that do not fit the budget after which no smaller one is tried."""
_SAME_IN_TEN: Final = 9
"""Words of ten that two messages must share to be near-duplicates."""
_LEAST_WORDS: Final = 4
"""Words below which messages are not compared. 'Thank you.' is no duplicate."""
_COMPARED_CHARS: Final = 2_400
"""Characters at the beginning of two messages that are compared."""
CONTEXT_BLOCK: Final = "context_block"
"""Kind of a part that is a context block."""
_BOUNDARY_CHARS: Final = 60
"""Characters by which an excerpt's start may move to the start of a line or a sentence."""


class StoredText(NamedTuple):
    """A message as it is stored."""

    seq: int
    role: str
    content: str
    """As JSON."""
    created_at: datetime | None
    """Time of the message, or None if unknown."""
    name: str = ""
    """Name of the author, if it is stored and was requested."""


class QuotedMessage(NamedTuple):
    """A message with the parts that recall may quote."""

    seq: int
    role: str
    created_at: datetime | None
    """Time of the message, or None if unknown."""
    parts: list[QuotedPart]
    name: str = ""
    """Name of the author, or "" if unknown."""


def quote_messages(rows: Iterable[StoredText], *, masked: bool = False) -> dict[int, QuotedMessage]:
    """Return messages by seq, in order. Tool results get the names of the calls before them.

    With `masked`, credentials are masked.
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
    return {seq: _with_nearby_words(message, messages) for seq, message in messages.items()}


def _with_nearby_words(message: QuotedMessage, others: Mapping[int, QuotedMessage]) -> QuotedMessage:
    """Return a message whose images and files have nearby words: the message's own, else its neighbour's."""
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


def quote_context_block(row: Any, *, masked: bool = False) -> QuotedMessage:
    """Return a context block as the only part of the message that it came with.

    The row has seq, position, source, text and created_at. With `masked`, credentials are masked.
    """
    text = mask_text(row.text, row.seq) if masked else row.text
    part = QuotedPart(row.position, CONTEXT_BLOCK, text, row.source, is_context=True)
    return QuotedMessage(row.seq, "user", row.created_at, [part])


def segments_of(messages: Mapping[int, QuotedMessage], after: int = -1) -> list[Segment]:
    """Return the segments of the messages with a seq above `after`."""
    return list(
        build_segments(
            Searchable(seq, message.role, "\n".join(part.text for part in message.parts))
            for seq, message in messages.items()
            if seq > after
        )
    )


class Excerpt(NamedTuple):
    """An excerpt of a part. `text` starts at `offset` of the part's `characters`."""

    original: QuotedMessage
    part: QuotedPart
    text: str
    offset: int
    characters: int

    @property
    def ref(self) -> str:
        """Return the excerpt's reference."""
        name = references.context_block if self.part.is_context else references.block
        return name(self.original.seq, self.part.block)


class Passage(NamedTuple):
    """Consecutive messages."""

    first_seq: int
    last_seq: int
    score: float
    excerpts: list[Excerpt]

    @property
    def ref(self) -> str:
        """Return the passage's reference. A context block is a passage of its own."""
        first = self.excerpts[0]
        return first.ref if first.part.is_context else references.span(self.first_seq, self.last_seq)

    @property
    def seqs(self) -> list[int]:
        """Return the seqs of the passage's messages; empty for a context block."""
        return list(dict.fromkeys(each.original.seq for each in self.excerpts if not each.part.is_context))


class PackedPassages(NamedTuple):
    """Passages that fit the token budget. `more` is set if others did not fit."""

    passages: list[Passage]
    tokens: int
    more: bool


def tokens_of(text: str) -> int:
    """Return the estimated tokens of a text, rounded up."""
    return -(-text_weight(text) // CHARS_PER_TOKEN)


class DuplicateFilter:
    """Word sets of the texts seen so far, to recognize near-duplicates."""

    def __init__(self) -> None:
        self._seen: dict[str, list[frozenset[str]]] = {}

    def has_near_duplicate(self, words: frozenset[str]) -> bool:
        """Return whether nearly the same words were seen before. If not, remember them."""
        if len(words) < _LEAST_WORDS:
            return False
        # Two near-duplicates share one of their first words in any fixed order. Long words are rare, so sorting by
        # length leaves few sets to compare. Comparing every pair takes seconds for a thousand messages.
        first = sorted(words, key=lambda word: (-len(word), word))[: len(words) * (10 - _SAME_IN_TEN) // 10 + 1]
        if any(_is_same(words, other) for word in first for other in self._seen.get(word, ())):
            return True
        for word in first:
            self._seen.setdefault(word, []).append(words)
        return False


class _PassagePacker:
    """The excerpts chosen so far and the remaining budget."""

    def __init__(
        self, hits: Sequence[Hit], originals: Mapping[int, QuotedMessage], max_tokens: int, focus: Focus
    ) -> None:
        self.chosen: dict[int, list[Excerpt]] = {}
        self.room = max_tokens
        self._scores = dict(hits)
        self._originals = originals
        self._longest = min(EXCERPT_CHARS, max_tokens * CHARS_PER_TOKEN)
        self._focus = focus
        self._seen = DuplicateFilter()

    def is_near_duplicate(self, seq: int) -> bool:
        """Return whether a message nearly repeats a better hit. If not, remember its words."""
        text = "\n".join(part.text for part in self._originals[seq].parts)
        return self._seen.has_near_duplicate(frozenset(tokens(text[:_COMPARED_CHARS])))

    def add_message(self, seq: int) -> bool:
        """Add a message. Return False if it does not fit the remaining budget."""
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

    def starts_passage(self, seq: int) -> bool:
        """Return whether a message is adjacent to no chosen one."""
        return not self.chosen.keys() & {seq - 1, seq, seq + 1}

    def passages(self) -> list[Passage]:
        """Return the chosen passages, the best first and the newest first among equals."""
        packed = []
        for run in _runs(self.chosen):
            score = max(self._scores.get(seq, 0.0) for seq in run)
            packed.append(Passage(run[0], run[-1], score, [excerpt for seq in run for excerpt in self.chosen[seq]]))
        return sorted(packed, key=lambda passage: (-passage.score, -passage.last_seq))


def pack_passages(
    hits: Sequence[Hit], originals: Mapping[int, QuotedMessage], *, max_tokens: int, limit: int, focus: Focus
) -> PackedPassages:
    """Return at most `limit` passages of at most `max_tokens` together, from the best hits and their neighbours.

    Long messages are cut around the places that `focus` finds. Hits without an original, and near-duplicates of a
    better hit, are skipped.
    """
    packing = _PassagePacker(hits, originals, max_tokens, focus)
    misses, more = 0, False
    for seq, _ in hits:
        if seq in packing.chosen or seq not in originals or packing.is_near_duplicate(seq):
            continue
        if packing.starts_passage(seq) and len(_runs(packing.chosen)) >= limit:
            more = True
            continue
        if packing.add_message(seq):
            for neighbour in (at for distance in range(1, NEIGHBOURS + 1) for at in (seq + distance, seq - distance)):
                if (
                    neighbour in originals
                    and neighbour not in packing.chosen
                    and not packing.is_near_duplicate(neighbour)
                ):
                    packing.add_message(neighbour)
            continue
        more, misses = True, misses + 1
        if misses >= _MISSES:
            break
    return PackedPassages(packing.passages(), max_tokens - packing.room, more)


def read_range(
    originals: Sequence[QuotedMessage], *, block: int | None, offset: int, max_tokens: int
) -> PackedPassages:
    """Return originals in order, from character `offset` of their texts, up to `max_tokens`."""
    runs: list[list[Excerpt]] = []
    room, skip, more, last = max_tokens * CHARS_PER_TOKEN, offset, False, None
    for original in originals:
        for part in original.parts:
            if block is not None and part.block != block:
                continue
            if skip and skip >= len(part.text):
                skip -= len(part.text)
                continue
            text = _cut_to_weight(part.text[skip:], room)
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
    return PackedPassages(passages, sum(tokens_of(excerpt.text) for run in runs for excerpt in run), more)


def _cut_to_weight(text: str, room: int) -> str:
    """Return the longest beginning of `text` that weighs at most `room` characters."""
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
    """Return a whole message, or its matching parts cut to `most` weighted characters together."""
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
            excerpts.append(Excerpt(original, part, _cut_to_weight(part.text[start:], share), start, len(part.text)))
    return excerpts


def _best_start(text: str, places: Sequence[tuple[int, float]], width: int) -> int:
    """Return the start of the excerpt of `width` characters with the highest weight of matches."""
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
