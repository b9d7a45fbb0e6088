"""Exact identifiers: what kind a value is, and whether a text holds it, trivial formatting aside."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import cached_property
from itertools import chain, islice
from typing import Final

from compaction.text.salience import values


class ValueKind(StrEnum):
    """What an exact value is, by its form alone."""

    URL = "url"
    EMAIL = "email"
    PATH = "path"
    HASH = "hash"
    HOST = "host"
    ID = "id"
    AMOUNT = "amount"
    DATE = "date"
    NUMBER = "number"
    NAME = "name"


_MONTH_LIST: Final = "january february march april may june july august september october november december"
_MONTHS: Final = tuple(_MONTH_LIST.split())
_CURRENCY: Final = "$\u20ac\u00a3\u00a5"
_LEAST_ID_DIGITS: Final = 3
_LEAST_ID_CHARS: Final = 6
_LONG_NUMBER_DIGITS: Final = 7

_THOUSANDS: Final = re.compile(r"(?<=\d)[,'\u2019\u00a0\u2009\u202f](?=\d{3}(?!\d))")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+]*://|www\.")
_URL: Final = re.compile(r"(?:[a-z][a-z0-9+]*://|www\.).+")
_AMOUNT: Final = re.compile(rf"[{_CURRENCY}].+")
_EMAIL: Final = re.compile(r"[^@/\s]+@[a-z0-9-]+(?:\.[a-z0-9-]+)+")
_HEX: Final = re.compile(r"(?=[0-9a-f-]*[0-9])(?=[0-9-]*[a-f])[0-9a-f]{7,}(?:-[0-9a-f]+)*")
_HOST: Final = re.compile(r"(?=[a-z0-9.-]*[a-z.])[a-z0-9-]+(?:\.[a-z0-9-]+)*:\d{2,5}|\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?")
_ISO_DATE: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[t ].*)?")
_OTHER_DATE: Final = re.compile(r"\d{1,4}([./])\d{1,2}\1\d{2,4}")
_CLOCK: Final = re.compile(r"\d{1,2}:\d\d(?::\d\d)?(?:[ap]m|[+z].*)?")
_FEW_DIGITS: Final = re.compile(r"(?:19|20)\d\d|[.,]*(?:\d[.,]*){0,3}")
"""A year, or a number too short to be looked up."""
_NUMBER: Final = re.compile(r"[\d.,]+")
_SLASHED: Final = re.compile(r".*/.*")
_MIXTURE: Final = re.compile(r"(?=.*\d).{4,}")
_NAME: Final = re.compile(r"(?=.*[_@]).{5,}|(?=.{5})[\w-]{2,}(?:\.[\w-]+)*\.[a-z][a-z0-9]{1,4}")
_MEASURE: Final = re.compile(r"\d+(?:[.,]\d+)?-?[a-z]+|[\d.]+%|v\d+(?:\.\d+){0,2}")
"""A number and its unit, such as 24-hour or 16gb, a share, a version: words to a reader, not values to look up."""
_FRACTION: Final = re.compile(r"\d+(?:\.\d+)?/\d+")
_PATH: Final = re.compile(r"(?:[^/]+/)+[^/]*(?:\.[a-z][a-z0-9]{0,5}|[0-9_-][^/]*)(?:[:#].*)?|(?:[^/]+/){3,}[^/]+")
_EXTENSION: Final = re.compile(r"\.[a-z][a-z0-9]{0,5}(?:[:#].*)?$")
_MIXED: Final = re.compile(r"(?=.*\d)(?=.*[a-z]).*.[A-Z]")
_DIGITS: Final = re.compile(r"\d")
_PERIOD: Final = re.compile(r"(?:19|20)\d\d-(?:0[1-9]|1[0-2]|q[1-4])|q[1-4]-(?:19|20)\d\d")
"""A month or a quarter of a year."""
_SIZE: Final = re.compile(r"(?!0x)\d{1,5}(?:\.\d+)?(?:x\d{1,5}(?:\.\d+)?){1,2}[a-z]{0,3}")
"""Such as 1920x1080 or 10x20cm: numbers of their own, which others set apart or join with another sign."""
_VERSION: Final = re.compile(r"v\d+(?:\.\d+){0,2}")
_JOINT: Final = re.compile(r"(?<=.)(?:-|\.{2,})(?=.)|(?<=[a-z])(?=\d)")
"""Where a value may be put together of two: the ends of a range, a word and its number."""
_MOST_JOINTS: Final = 6
_AFFIXES: Final = frozenset({"early", "end", "late", "mid", "post", "pre"})
"""Words that are put before a year or another number of the text."""


_FORMS: Final[tuple[tuple[re.Pattern[str], ValueKind | None], ...]] = (
    (_URL, ValueKind.URL),
    (_EMAIL, ValueKind.EMAIL),
    (_AMOUNT, ValueKind.AMOUNT),
    (_CLOCK, None),
    (_MEASURE, None),
    (_ISO_DATE, ValueKind.DATE),
    (_OTHER_DATE, ValueKind.DATE),
    (_FRACTION, ValueKind.NUMBER),
    (_HOST, ValueKind.HOST),
    (_HEX, ValueKind.HASH),
    (_PATH, ValueKind.PATH),
    (_FEW_DIGITS, None),
    (_NUMBER, ValueKind.NUMBER),
    (_SLASHED, None),
    (_MIXTURE, ValueKind.ID),
    (_NAME, ValueKind.NAME),
)
"""The first form that a whole value has tells its kind; None is for what nobody has to keep exactly."""


def kind_of(value: str) -> ValueKind | None:
    """Return what a lower-case value of `salience.values` is, None for one that nobody has to keep exactly."""
    return next((kind for form, kind in _FORMS if form.fullmatch(value)), None)


def is_strong(value: str) -> bool:
    """Return whether `value` is of a kind that nobody comes up with by rounding or by writing a date another way."""
    digits = len(_DIGITS.findall(value))
    match kind_of(value):
        case ValueKind.URL | ValueKind.EMAIL | ValueKind.HASH | ValueKind.HOST:
            return True
        case ValueKind.PATH:
            return bool(digits or _EXTENSION.search(value))
        case ValueKind.ID:
            if digits < _LEAST_ID_DIGITS or len(value) < _LEAST_ID_CHARS:
                return False
            is_range = any(_is_weak_end(start) and _is_weak_end(end) for start, end in _halves(value))
            return not (is_range or _PERIOD.fullmatch(value) or _SIZE.fullmatch(value))
        case ValueKind.NUMBER:
            return digits >= _LONG_NUMBER_DIGITS and "." not in value and "/" not in value
        case _:
            return False


def fold_text(text: str) -> str:
    """Return `text` in lower case without separators of thousands."""
    return _THOUSANDS.sub("", text.lower())


def spelling_of(value: str, text: str) -> str:
    """Return `value`, which is in lower case, as `text` first spells it."""
    match = re.search(rf"(?<![A-Za-z0-9]){re.escape(value)}", text, re.IGNORECASE)
    return match[0] if match else value


class Text:
    """A text that values are looked up in; building it takes time linear in its length."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def folded_text(self) -> str:
        """The text in lower case without separators of thousands."""
        return fold_text(self._text)

    @cached_property
    def values(self) -> frozenset[str]:
        """Every exact value, folded."""
        return frozenset(fold_text(value) for value in values(self._text))

    @cached_property
    def _all_digits(self) -> str:
        return re.sub(r"(?<=\d)[ ().-]+(?=\d)", "", self.folded_text)

    def holds(self, value: str) -> bool:
        """Return whether `value` is here, exactly but for trivial formatting.

        Case counts only where it carries meaning, in codes that mix both. A date may be written with its month's name.
        """
        if _MIXED.match(value) and not _HEX.fullmatch(value.lower()):
            kind = kind_of(value.lower())
            if kind is ValueKind.ID:
                return _stands(value, self._text)
        wanted = fold_text(value)
        if wanted in self.values or _stands(wanted, self.folded_text):
            return True
        match kind_of(wanted):
            case ValueKind.AMOUNT | ValueKind.NUMBER:
                number = wanted.lstrip(_CURRENCY)
                number = number.rstrip("0").rstrip(".") if "." in number else number
                return bool(re.search(rf"(?<![\d.]){re.escape(number)}(?:\.0+)?(?!\d|\.\d)", self.folded_text))
            case ValueKind.DATE:
                return any(_stands(form, self.folded_text) for form in _written_dates(wanted, self.folded_text))
            case _:
                return False

    def knows(self, value: str) -> bool:
        """Return whether `value` can come from here: it is here, is part of what does, or joins what does."""
        wanted = fold_text(value)
        if wanted in self.values or wanted in self.folded_text:
            return True
        if kind_of(wanted) is ValueKind.PATH:
            # A file named by its directory and, elsewhere, by its name is one that a reader can put together.
            return f"/{wanted.rsplit('/', 1)[-1]}" in f"/{self.folded_text}" or wanted.rsplit("/", 1)[-1] in self.values
        if kind_of(wanted) is ValueKind.URL:
            return _SCHEME.sub("", wanted, count=1).rstrip("/") in self.folded_text
        digits = re.sub(r"[ ().+-]", "", wanted)
        if digits.isdecimal() and digits in self._all_digits:
            return True
        return kind_of(wanted) is ValueKind.ID and any(
            (start in _AFFIXES or self._has_whole(start)) and self._has_whole(end) for start, end in _halves(wanted)
        )

    def _has_whole(self, part: str) -> bool:
        return part in self.values or (part in self.folded_text and _stands(part, self.folded_text))


def _halves(value: str) -> list[tuple[str, str]]:
    """Return what a value may be put together of, for each of its joints; nothing where it has very many."""
    joints = [match.span() for match in islice(_JOINT.finditer(value), _MOST_JOINTS + 1)]
    return [(value[:start], value[end:]) for start, end in joints] if len(joints) <= _MOST_JOINTS else []


def _is_weak_end(value: str) -> bool:
    """Return whether a range from or to `value` is one that anybody may write another way."""
    return any(form.fullmatch(value) for form in (_CLOCK, _ISO_DATE, _OTHER_DATE, _VERSION))


def _stands(value: str, text: str) -> bool:
    """Return whether `value` is in `text` as a whole and not as a part of a longer one."""
    before, after = r"(?<![^\W_])", r"(?![^\W_])"
    if value[:1].isdigit():
        before = r"(?<![^\W_])(?<!\d[.,])"
    if value[-1:].isdigit():
        after = r"(?![^\W_])(?![.,]\d)"
    return re.search(f"{before}{re.escape(value)}{after}", text) is not None


def _written_dates(value: str, text: str) -> list[str]:
    """Return other ways to write an ISO date, those without a year only where `text` names the year."""
    match = _ISO_DATE.fullmatch(value)
    if not match or not 1 <= int(match[2]) <= len(_MONTHS):
        return []
    year, month, day = match[1], match[2], match[3]
    bare = str(int(day))
    forms = [f"{year}/{month}/{day}", f"{month}/{day}/{year}", f"{day}.{month}.{year}", f"{day}/{month}/{year}"]
    if year in text:
        name = _MONTHS[int(month) - 1]
        days = [bare, f"{bare}st", f"{bare}nd", f"{bare}rd", f"{bare}th"]
        forms += chain.from_iterable(
            (f"{spelling}{gap}{written}", f"{written} {spelling}")
            for spelling in (name, name[:3])
            for gap in (" ", ". ")
            for written in days
        )
    return forms
