"""Dates: what a message says of when it was written, and which day the words "last Friday" mean when it was."""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_MONTH_LIST: Final = "January February March April May June July August September October November December"
_MONTHS: Final = tuple(_MONTH_LIST.split())
_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_COUNTS: Final = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "ten": 10}
_MONTH: Final = "(?P<month>" + "|".join(f"{name[:3]}(?:{name[3:]})?" for name in _MONTHS) + r")\.?"
_STAMP: Final = re.compile(r"\s*\[([^\[\]\n]{6,60})\]:?(?:\s|$)")
_FORMS: Final = (
    re.compile(r"\b(?P<year>(?:19|20)\d\d)-(?P<number>[01]\d)-(?P<day>[0-3]\d)"),
    re.compile(rf"\b(?P<day>[0-3]?\d)(?:st|nd|rd|th)?\s+{_MONTH},?\s+(?P<year>(?:19|20)\d\d)\b", re.IGNORECASE),
    re.compile(rf"\b{_MONTH}\s+(?P<day>[0-3]?\d)(?:st|nd|rd|th)?,?\s+(?P<year>(?:19|20)\d\d)\b", re.IGNORECASE),
)
_RELATIVE: Final = re.compile(
    r"\b(?:(?P<plain>yesterday|last night|tomorrow)"
    rf"|(?P<last>last|this past|next)\s+(?P<unit>month|year|(?:{'|'.join(_DAYS)})|(?:mon|tues?|wed|thurs?|fri|sat|sun))"
    rf"|(?P<count>\d{{1,2}}|{'|'.join(_COUNTS)})\s+(?P<of>day|month|year)s?\s+ago)\b(?!\s*\()",
    re.IGNORECASE,
)
TIME_UNKNOWN: Final = "time unknown"
"""What models read where nobody knows when a message was said."""
_MOST_YEARS: Final = 100


class StampedText(NamedTuple):
    """A text without the time in brackets that it begins with, and that day; None where it begins with none."""

    day: date | None
    text: str


def split_stamp(text: str) -> StampedText:
    """Take off the time that an application put before a message: `[1:56 pm on 8 May, 2023] Hello`."""
    match = _STAMP.match(text) if text.lstrip().startswith("[") else None
    day = _day_in(match[1]) if match else None
    return StampedText(None, text) if match is None or day is None else StampedText(day, text[match.end() :])


def with_iso_dates(text: str) -> str:
    """Return a text in which each whole date is written as `2031-05-04`, whichever way it was."""

    def iso(match: re.Match[str]) -> str:
        day = _day_of(match)
        return match[0] if day is None else day.isoformat()

    for form in _FORMS[1:]:
        text = form.sub(iso, text)
    return text


def is_day_alone(line: str) -> bool:
    """Return whether a line is a day that heads what was said on it, and says nothing itself."""
    day, rest = split_stamp(line)
    return day is not None and not rest.strip()


def format_day(day: date) -> str:
    """Return a day in words, the month's name in English: `8 May, 2023`."""
    return f"{day.day} {_MONTHS[day.month - 1]}, {day.year}"


def add_dates(text: str, said: date) -> str:
    """Return `text`, said on the day `said`, with the date after each English word for a day, month or year.

    `went there yesterday` becomes `went there yesterday (7 May)`.
    """

    def with_date(match: re.Match[str]) -> str:
        when = _date_of(match, said)
        return f"{match[0]} ({when})" if when else match[0]

    return _RELATIVE.sub(with_date, text)


def _day_in(text: str) -> date | None:
    for form in _FORMS:
        if match := form.search(text):
            return _day_of(match)
    return None


def _day_of(match: re.Match[str]) -> date | None:
    given = match.groupdict()
    month = int(given.get("number") or 0) or _month(given.get("month") or "")
    try:
        return date(int(match["year"]), month, int(match["day"]))
    except ValueError:  # a day that no calendar has
        return None


def _month(name: str) -> int:
    return next(at for at, full in enumerate(_MONTHS, 1) if full[:3].lower() == name[:3].lower())


def _date_of(match: re.Match[str], said: date) -> str:
    try:
        if plain := match["plain"]:
            return _short(said + timedelta(days=1 if plain.lower() == "tomorrow" else -1))
        if count := match["count"]:
            return _ago(_COUNTS.get(count.lower()) or int(count), match["of"].lower(), said)
        ahead = match["last"].lower() == "next"
        return _NEXT[match["unit"].lower()](said, ahead) if match["unit"].lower() in _NEXT else _weekday(match, said)
    except (ValueError, OverflowError):  # before the first or after the last year
        return ""


def _short(day: date) -> str:
    return f"{day.day} {_MONTHS[day.month - 1]}"


def _ago(count: int, unit: str, said: date) -> str:
    if unit == "day":
        return _short(said - timedelta(days=count))
    if unit == "month":
        return _months_on(said, -count)
    return str(said.year - count) if count < _MOST_YEARS else ""


def _months_on(said: date, count: int) -> str:
    months = said.year * 12 + said.month - 1 + count
    name = _MONTHS[months % 12]
    return name if months // 12 == said.year else f"{name} {months // 12}"


def _weekday(match: re.Match[str], said: date) -> str:
    wanted = next(at for at, name in enumerate(_DAYS) if name[:3] == match["unit"][:3].lower())
    if match["last"].lower() == "next":
        return _short(said + timedelta(days=(wanted - said.weekday()) % 7 or 7))
    return _short(said - timedelta(days=(said.weekday() - wanted) % 7 or 7))


_NEXT: Final[dict[str, Callable[[date, bool], str]]] = {
    "month": lambda said, ahead: _months_on(said, 1 if ahead else -1),
    "year": lambda said, ahead: str(said.year + (1 if ahead else -1)),
}
