"""The evidence: the text that a summary replaces, read once for several summaries."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compaction.extract.draft import SPEAKERS
from compaction.messages import CALLS, THINKING, blocks, is_request
from compaction.pins.requests import is_answered, only_thanks
from compaction.recall.words import UNSPACED
from compaction.text.clauses import GAP, READ_CHARS, chars_in, clip_text, first_records, one_line, prose
from compaction.text.identifiers import Text, ValueKind, kind_of, spelling_of
from compaction.text.names import attribution, speaker_of, split_attribution, stated_name
from compaction.text.outline import read_share
from compaction.text.salience import (
    BOUND_WORDS,
    CONTENT_WORD,
    FUNCTION_WORDS,
    Source,
    Weights,
    clean,
    content_words,
    values,
)
from compaction.tokens import content_weight, text_weight
from compaction.view import WRITTEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from compaction.view import ViewMessage

_CROWD_VALUES: Final = 6
"""Values in one message above which each counts for less, as in a pasted log."""
_CROWD_CHARS: Final = 1_000
"""Characters of a tool's output above which each value counts for less."""
_MENTIONS: Final = 4
_DATA_CHARS: Final = 1_000
"""Characters above which an unbroken string is encoded data."""
_MAX_NESTING: Final = 40
_NAME_CHARS: Final = 80
"""Characters of a tool's name before each clause of a call."""
_REQUEST_HEAD: Final = 400
_REQUEST_TAIL: Final = 200
"""Characters at either end of a request that represent it."""
_STEM_CHARS: Final = 5
_SHORT_CHARS: Final = 45
"""Characters on either side of a value that explain it."""

_DENSE: Final = re.compile(f"[{UNSPACED}]+")
"""Scripts without spaces between words, and Korean, which inflects words. They are compared in pairs of letters."""
_KIND_FACTORS: Final[Mapping[ValueKind, float]] = {ValueKind.NAME: 0.5, ValueKind.NUMBER: 0.7, ValueKind.DATE: 0.9}


class Mention(NamedTuple):
    """One use of a value: the text, or the input of a call of `tool`."""

    source: Source
    text: str
    tool: str = ""
    input: Any = None
    name: str = ""
    """Name of the author, if known."""
    place: int = 0
    """Number of the message in the zone. Lines of the earlier summary have numbers up to -1."""

    def clauses(self, most: int = READ_CHARS) -> Iterator[str]:
        """Yield the clauses of the text, up to `most` characters."""
        if self.tool:
            for record in first_records(self.input, most, one_line(clean(self.tool[:_NAME_CHARS]))):
                yield from (one_line(clean(record.lead + clause)) for clause in record.clauses)
        else:
            for record in prose(clean(clip_text(self.text, most))):
                yield from (attribution(SPEAKERS.get(self.source, ""), self.name) + clause for clause in record.clauses)

    def window(self, value: str) -> str:
        """Return the text near `value` with its speaker. A clause may end inside the value or omit it."""
        at = self.text.index(value)
        near = self.text[max(0, at - 2 * _SHORT_CHARS) : at + len(value) + 2 * _SHORT_CHARS]
        return attribution(SPEAKERS.get(self.source, ""), self.name) + one_line(clean(near))


class Evidence:
    """The messages and the earlier summary that a summary replaces. Created by `gather`."""

    def __init__(self, end: int, max_read: int = READ_CHARS) -> None:
        self._max_read = max_read
        """Characters of one text that are searched for required values."""
        self._weights = Weights(end)
        self._mentions: dict[str, list[Mention]] = {}
        """The last `_MENTIONS` of each value."""
        self._clauses: dict[int, tuple[str, ...]] = {}
        self._crowds: dict[str, float] = {}
        self._texts: list[str] = []
        self.weight = 0
        """Characters. Those of dense scripts count as four."""
        self.request = ""
        """The user's latest request, or ""."""
        self.request_place = 0
        self.request_speaker = ""
        """The author of the request, as in `User (anna)`."""
        self.is_request_answered = False

    @cached_property
    def text(self) -> Text:
        """All text that the summary may mention."""
        return Text("\n".join(self._texts))

    @cached_property
    def terms(self) -> frozenset[str]:
        """The content words of the text."""
        return frozenset().union(*map(terms, self._texts))

    def top_values(self, count: int) -> tuple[str, ...]:
        """Return the `count` most important values used by people, the model or its calls, as spelled.

        The most important come first. Finding the spelling of a value searches its text, so ask for few.
        """
        return tuple(spelling_of(value, self._mentions[value][-1].text) for value in self._ranked_values[:count])

    @cached_property
    def _ranked_values(self) -> list[str]:
        """Every value that may be required, in lower case."""
        return [value for _, value in sorted((-self._rate(value), value) for value in self._mentions if kind_of(value))]

    def texts_around(self, value: str) -> Iterator[tuple[int, str]]:
        """Yield texts that contain `value`, with their places.

        The most informative comes first, and each is shorter than the one before.
        """
        mentions = [mention for mention in reversed(self._mentions.get(value.lower(), ())) if value in mention.text]
        clauses = [(each.place, clause) for each in mentions for clause in self._clauses_of(each) if value in clause]
        clauses += [(mention.place, mention.window(value)) for mention in mentions]
        if not clauses:
            return
        place, best = next((each for each in clauses if content_words(each[1]) > BOUND_WORDS), clauses[0])
        yield place, best
        at = best.index(value)
        start = at - _SHORT_CHARS
        start = 0 if start <= 0 else best.find(" ", start, at) + 1 or at
        end = at + len(value) + _SHORT_CHARS
        end = len(best) if end >= len(best) else max(best.rfind(" ", 0, end), at + len(value))
        short = best[start:end].strip()
        if len(short) < len(best):
            said_by = best[: len(best) - len(split_attribution(best)[2])] if start else ""
            yield place, f"{said_by}{GAP.lstrip() if start else ''}{short}{GAP.rstrip() if end < len(best) else ''}"

    def _clauses_of(self, mention: Mention) -> tuple[str, ...]:
        """Return the clauses of a mention, cached because a summary may lack many values of one text."""
        known = self._clauses.get(id(mention))
        if known is None:
            known = self._clauses[id(mention)] = tuple(mention.clauses(self._max_read))
        return known

    def _rate(self, value: str) -> float:
        kind = kind_of(value)
        assert kind is not None  # noqa: S101 - the caller leaves out the others
        return self._weights[value] * self._crowds[value] * _KIND_FACTORS.get(kind, 1.0)

    def add_mention(self, mention: Mention) -> None:
        """Add the content of a message."""
        self._texts.append(mention.text)
        mentioned = set(values(clip_text(mention.text, self._max_read)))
        spoken = mention.source != "result"
        strength = 1.0 if spoken else min(1.0, math.sqrt(_CROWD_CHARS / (1 + len(mention.text))))
        crowd = min(1.0, math.sqrt(_CROWD_VALUES / max(1, len(mentioned))))
        for value in mentioned:
            self._weights.mention(value, mention.source, mention.place, strength)
            if spoken:
                mentions = self._mentions.setdefault(value, [])
                mentions.append(mention)
                del mentions[:-_MENTIONS]
                self._crowds[value] = max(crowd, self._crowds.get(value, 0.0))

    def add_known_text(self, text: str) -> None:
        """Add text that the summary may mention but does not need."""
        self._texts.append(text)


def gather(
    zone: Sequence[ViewMessage],
    previous: str | None = None,
    *,
    other_texts: Iterable[str] = (),
    names: Mapping[int, str] = MappingProxyType({}),
    tail: Sequence[ViewMessage] = (),
) -> Evidence:
    """Return the evidence of the messages in `zone` and of the `previous` summary.

    `names` are the known authors of messages by seq. `tail` are the messages after the zone. `other_texts` are further
    inputs of the summarizer, such as the first message, which the summary may mention. Text written by compaction and
    thinking, which no summarizer sees, are not evidence.
    """
    lengths = (chars_in(block) for message in zone if message.seq != WRITTEN for block in blocks(message.content))
    evidence = Evidence(len(zone), read_share(lengths, READ_CHARS))
    lines = [line for line in (previous or "").split("\n") if line.strip()]
    for number, line in enumerate(lines):
        evidence.add_mention(Mention("note", line, place=number - len(lines)))
    evidence.weight += text_weight(previous or "")
    request_seq = WRITTEN
    for place, message in enumerate(zone):
        if message.seq == WRITTEN:
            continue
        name = names.get(message.seq, "") or _stated_name(message)
        for mention in mentions(message):
            evidence.add_mention(mention._replace(name=name, place=place))
        evidence.weight += content_weight(message.content)
        if is_request(message.role, message.content) and (asked := spoken_text(message.content)):
            if only_thanks(asked):
                continue
            evidence.request, evidence.request_place = asked, place
            evidence.request_speaker = speaker_of(SPEAKERS["user"], name)
            request_seq = message.seq
    if evidence.request:
        evidence.is_request_answered = is_answered((*zone, *tail), request_seq)
    for text in other_texts:
        evidence.add_known_text(text)
    return evidence


def _stated_name(message: ViewMessage) -> str:
    if not is_request(message.role, message.content):
        return ""
    return stated_name(spoken_text(message.content)).name


def spoken_text(content: Any) -> str:
    """Return the text blocks of a message, joined by line breaks."""
    said = [str(block.get("text") or "") for block in blocks(content) if block.get("type") == "text"]
    return "\n".join(text for text in said if text.strip())


def request_essence(request: str) -> str:
    """Return the first and last characters of a request, on one line."""
    text = one_line(clean(request))
    if len(text) <= _REQUEST_HEAD + _REQUEST_TAIL:
        return text
    head = text[:_REQUEST_HEAD].rpartition(" ")[0] or text[:_REQUEST_HEAD]
    tail = text[-_REQUEST_TAIL:].partition(" ")[2] or text[-_REQUEST_TAIL:]
    return f"{head}{GAP}{tail}"


def terms(text: str) -> frozenset[str]:
    """Return the stems of the content words of `text`, and pairs of letters for scripts without spaces."""
    text = text.lower()
    pairs: set[str] = set()
    if not text.isascii():
        for run in _DENSE.findall(text):
            pairs.update(run[at : at + 2] for at in range(len(run) - 1))
        text = _DENSE.sub(" ", text)
    return frozenset(
        pairs.union(word[:_STEM_CHARS] for word in CONTENT_WORD.findall(text) if word not in FUNCTION_WORDS)
    )


def mentions(message: ViewMessage) -> Iterator[Mention]:
    """Yield the text, calls and results of a message, block by block, without thinking."""
    source: Source = "user" if message.role == "user" else "assistant"
    for block in blocks(message.content):
        kind = str(block.get("type"))
        if kind == "text":
            yield Mention(source, str(block.get("text") or ""))
        elif kind in CALLS:
            given = block.get("input")
            yield Mention("call", "\n".join(_leaves(given)), str(block.get("name")), given)
        elif kind not in THINKING:
            rest = {key: value for key, value in block.items() if key not in {"type", "tool_use_id", "cache_control"}}
            yield Mention("result", "\n".join(_leaves(rest)))


def _leaves(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield the strings and numbers in a JSON value, without encoded data."""
    if isinstance(value, str):
        if len(value) <= _DATA_CHARS or any(char.isspace() for char in value[:_DATA_CHARS]):
            yield value
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield str(value) if not isinstance(value, int) or value.bit_length() <= _DATA_CHARS else ""
    elif depth < _MAX_NESTING:
        if isinstance(value, Mapping):
            value = value.values()
        elif not isinstance(value, list):
            return
        for item in value:
            yield from _leaves(item, depth + 1)
