"""How much the exact values in a conversation matter: by who used them, how lately, and how widely.

Nothing here knows a subject. The figures were fitted to look-ahead recall on recorded conversations: which values of
the past the speakers used again.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from compaction.credentials.marks import without_marks
from compaction.text.invisible import INVISIBLE, SPACE, SPACES, spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Source = Literal["user", "call", "assistant", "result", "note"]
"""Who said something; `note` is a line of an earlier summary that names no speaker."""

_OPAQUE_CHARS: Final = 160
"""Characters; a longer unbroken token is encoded data, not a value that anyone will name again."""
_MINOR_CHARS: Final = 4
"""Characters; a shorter bare number cannot be distinguished from others."""
_CURRENCY: Final = "$\u20ac\u00a3\u00a5#"

_UNSAFE: Final = re.compile(f"\x1b\\[[0-9;?]*[A-Za-z]|[{INVISIBLE}]")
_CONTROLS: Final = re.compile("\x1b\\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0e-\x1f\x7f]")
"""The same in ASCII, where a search takes a third of the time."""
_MARKER: Final = re.compile(
    rf"\[({SPACES}(?:(?:{spread('END')}{SPACE})?{spread('CONTEXT SUMMARY')}"
    rf"|{spread('truncated for context management')}){SPACES})\]",
    re.IGNORECASE,
)
_TOKEN: Final = re.compile(rf"[{_CURRENCY}]?[A-Za-z0-9](?:[A-Za-z0-9_./:@#+~=?&%-]*[A-Za-z0-9%])?")
_EXACT: Final = re.compile(r"[0-9@_]|/.*/")
_FILE: Final = re.compile(r"[\w-]+(?:\.[\w-]+)*\.[A-Za-z][A-Za-z0-9]{0,4}")
_LISTED: Final = re.compile(r"(?<!\S)\d{1,6}[:|](?=\s|[^\d\s]|$)")
"""Line numbers of a file listing: they say where a line is, not what it says."""
_FIELD: Final = re.compile(r"([^\W\d][\w-]{0,60})[:=] ?(\S{1,160})")
_AROUND_VALUE: Final = ".:/-,;{}()[]\"'"
_CLOCK: Final = re.compile(r"\d:\d\d")
_NUMBER: Final = re.compile(r"[\d.,-]+")
_DIGIT: Final = re.compile(r"[\d@]")
CONTENT_WORD: Final = re.compile(
    r"[^\W\d_](?:[^\W\d_]|(?![\d\u0964\u0965])[\u0300-\u036f\u064b-\u065f\u0670\u0900-\u0dff]){3,}"
)
"""Letters, with the marks that write vowels: Python takes those of Hindi, Bengali or Tamil for ends of words."""
_FUNCTION_WORD_LIST: Final = (
    "about also been before being could does doing each even from have having here into just like more most much "
    "only other over please same should some such than that their them then there these they this those very were "
    "what when where which while will with would your yours"
)
FUNCTION_WORDS: Final = frozenset(_FUNCTION_WORD_LIST.split())

BOUND_WORDS: Final = 3
"""Content words next to a value from which a reader can tell what the value is."""


def clean(text: str) -> str:
    """Return `text` without control and invisible characters, its context markers turned into plain words."""
    unsafe = _CONTROLS if text.isascii() else _UNSAFE
    return neutralize_markers(unsafe.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def neutralize_markers(text: str) -> str:
    """Return `text`, as long as it was, with the markers of summaries and truncated results in round brackets."""
    return _MARKER.sub(r"(\1)", text) if "[" in text else text


def values(text: str) -> list[str]:
    """Return the exact values in `text`, lower case: identifiers, paths, URLs, dates, amounts, numbers.

    What stands for a credential is none.
    """
    text = without_marks(text)
    listed = _LISTED.findall(text)
    if len(listed) > 1 or (listed and text.startswith(listed[0])):
        text = _LISTED.sub(" ", text)
    return [
        token.lower().strip(".:/-")
        for token in _TOKEN.findall(text)
        if len(token) <= _OPAQUE_CHARS and (_EXACT.search(token) or _FILE.fullmatch(token))
    ]


def fields(text: str) -> dict[str, str]:
    """Return the names of the fields that values in `text` are in, by value: `{"ab-12": "order_id"}`."""
    return {match[2].lower().strip(_AROUND_VALUE): match[1].lower() for match in _FIELD.finditer(text)}


def content_words(text: str) -> int:
    """Return how many different words of `text` say something: of four letters or more, no function words."""
    if _DIGIT.search(text):
        text = " ".join(token for token in text.split() if not _DIGIT.search(token))
    return len(set(CONTENT_WORD.findall(text.lower())) - FUNCTION_WORDS)


def recency(place: int, end: int, half: int = 12) -> float:
    """Return how fresh message number `place` is before message number `end`: 1 now, a half `half` messages ago."""
    return half / (half + max(0, end - 1 - place))


_SPOKEN: Final[Mapping[Source, float]] = {"user": 1.0, "call": 1.0, "assistant": 0.8, "note": 0.8, "result": 0.0}
"""What it adds to a value that someone spoke it or passed it to a tool, rather than a tool alone naming it."""
_SPOKEN_HALF: Final = 14
_SPOKEN_WEIGHT: Final = 0.6
_SPREAD_WEIGHT: Final = 0.12
_REGION_MESSAGES: Final = 16
"""Messages that count as one place: a value spoken in many such places belongs to the whole conversation."""
_NAMED_HALF: Final = 200
_NAMED_WEIGHT: Final = 0.5
_UNUSED_MENTIONS: Final = 4
_UNUSED_FACTOR: Final = 0.5
"""A value that tools named more often than that without anyone using it is furniture."""
_FIELD_RATE: Final = 0.1
"""Share of a field's values that speakers use, where nothing is known of the field."""
_FIELD_PRIOR: Final = 6.0
"""How many values of a field weigh as much as knowing nothing of it."""
_FIELD_FACTORS: Final = (0.4, 2.5)
"""The least and the most that standing in a field changes a value's weight."""
_PAUSE_MESSAGES: Final = 32
"""Messages; a value that nobody has named for longer matters as far as others of its field came back so late."""
_RETURN_RATE: Final = 0.1
"""Share of a field's values that come back after such a pause, where nothing is known of the field."""
_CLOCK_FACTOR: Final = 0.3
_NUMBER_FACTOR: Final = 0.7
_MINOR_FACTOR: Final = 0.2


@dataclass(slots=True)
class _Mentions:
    spoken: float = 0.0
    strength: float = 0.0
    last: int = 0
    count: int = 0
    pauses: int = 0
    """Times that it came back after `_PAUSE_MESSAGES`."""
    regions: set[int] = field(default_factory=set)
    field: str = ""


class Weights:
    """How much each value matters, from every place where it was mentioned; `end` is the number of messages."""

    def __init__(self, end: int) -> None:
        self._end = end
        self._mentions: dict[str, _Mentions] = {}
        self._known: dict[str, float] = {}
        self._rates: dict[str, float] = {}
        self._returns: dict[str, float] = {}

    def mention(self, value: str, source: Source, place: int, strength: float, *, name: str = "") -> None:
        """Note that `source` used `value` in message number `place`.

        `strength` is low for one value of a crowd, `name` is that of the field it is in.
        """
        seen = self._mentions.get(value)
        if seen is None:
            seen = self._mentions[value] = _Mentions(last=place)
        seen.spoken = max(seen.spoken, _SPOKEN[source])
        seen.strength = max(seen.strength, strength)
        seen.pauses += place - seen.last > _PAUSE_MESSAGES
        seen.last = max(seen.last, place)
        seen.count += 1
        seen.field = seen.field or name
        seen.regions.add(place // _REGION_MESSAGES)

    def is_spoken(self, value: str) -> bool:
        """Return whether anybody used a value, rather than tools alone."""
        seen = self._mentions.get(value)
        return seen is not None and seen.spoken > 0

    def __getitem__(self, value: str) -> float:
        """Return the weight of `value`, about 0 to 1, once every mention is noted."""
        weight = self._known.get(value)
        if weight is None:
            weight = self._known[value] = self._weight(value, self._mentions[value])
        return weight

    def _weight(self, value: str, seen: _Mentions) -> float:
        weight = _NAMED_WEIGHT * seen.strength * recency(seen.last, self._end, _NAMED_HALF)
        if seen.spoken:
            lately = _SPOKEN_WEIGHT * recency(seen.last, self._end, _SPOKEN_HALF)
            weight += seen.spoken * (lately + _SPREAD_WEIGHT * math.log2(len(seen.regions)))
        else:
            weight *= _kind_factor(value) * (_UNUSED_FACTOR if seen.count > _UNUSED_MENTIONS else 1.0)
            weight *= self._field_factor(seen.field)
            if self._rests(seen):
                weight *= self._return_factor(seen.field)
        if len(value) < _MINOR_CHARS and value[0] not in _CURRENCY:
            weight *= _MINOR_FACTOR
        return weight

    def _field_factor(self, name: str) -> float:
        """Return what standing in a field is worth: where speakers used its values before, they will again."""
        if not name:
            return 1.0
        if not self._rates:
            self._rates = _field_rates(((seen.field, seen.spoken > 0) for seen in self._mentions.values()), _FIELD_RATE)
        return _bound_factor(math.sqrt(self._rates[name] / _FIELD_RATE))

    def _return_factor(self, name: str) -> float:
        """Return what it is worth to a value left for long: where others came back from a pause, it may as well."""
        if not name:
            return 1.0
        if not self._returns:
            left = (seen for seen in self._mentions.values() if seen.pauses or self._rests(seen))
            self._returns = _field_rates(((seen.field, seen.pauses > 0) for seen in left), _RETURN_RATE)
        return _bound_factor(self._returns[name] / _RETURN_RATE)

    def _rests(self, seen: _Mentions) -> bool:
        return self._end - 1 - seen.last > _PAUSE_MESSAGES


def _field_rates(named_in: Iterable[tuple[str, bool]], usual: float) -> dict[str, float]:
    """Return for what share of each field's values something is true: nearly `usual` where there are few."""
    true: dict[str, int] = {}
    named: dict[str, int] = {}
    for name, is_true in named_in:
        if name:
            named[name] = named.get(name, 0) + 1
            true[name] = true.get(name, 0) + is_true
    return {name: (true[name] + usual * _FIELD_PRIOR) / (count + _FIELD_PRIOR) for name, count in named.items()}


def _bound_factor(factor: float) -> float:
    least, most = _FIELD_FACTORS
    return min(most, max(least, factor))


def _kind_factor(value: str) -> float:
    """Return what a kind of value is worth that only a tool named: identifiers above numbers above clock times."""
    if _CLOCK.search(value):
        return _CLOCK_FACTOR
    return _NUMBER_FACTOR if _NUMBER.fullmatch(value) else 1.0
