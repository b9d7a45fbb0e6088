"""Times that a query names, as ranges of time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_MONTHS: Final = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTH: Final = "(?P<month>" + "|".join(f"{name[:3]}(?:{name[3:]})?" for name in _MONTHS) + r")\.?"
_YEAR: Final = r"(?P<year>(?:19|20)\d\d)"
_DAY: Final = r"(?P<day>[0-3]?\d)(?:st|nd|rd|th)?"
_RELATIVE: Final = re.compile(
    r"\b(?P<count>\d{1,3}|a|an|one|two|three|a few)\s+(?P<unit>day|week|month|year)s?\s+ago\b"
)
_NAMED: Final = re.compile(r"\b(?P<which>last|this|past)\s+(?P<unit>week|month|year)\b")
_WEEKDAY: Final = re.compile(rf"\b(?:last|on|this)\s+(?P<day>{'|'.join(_DAYS)})\b")
_PLAIN: Final = re.compile(r"\b(?P<day>today|yesterday|tonight|this morning|last night)\b")
_DATES: Final = (
    re.compile(r"\b(?P<year>(?:19|20)\d\d)-(?P<number>[01]\d)(?:-(?P<day>[0-3]\d))?\b"),
    re.compile(rf"\b{_DAY}\s+(?:of\s+)?{_MONTH},?(?:\s+{_YEAR})?\b"),
    re.compile(rf"\b{_MONTH}\s+{_DAY}\b(?!\d),?(?:\s+{_YEAR})?\b"),
    re.compile(rf"\b(?:in|since|during|of)\s+{_MONTH}(?:\s+{_YEAR})?\b"),
    re.compile(rf"\b{_MONTH}\s+{_YEAR}\b"),
    re.compile(rf"\b(?:in|since|during)\s+{_YEAR}\b"),
)
_COUNTS: Final = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "a few": 3}
_UNIT_DAYS: Final = {"day": 1, "week": 7, "month": 30, "year": 365}

MOST_RANGES: Final = 8
"""First times of a query that are looked up. A question names one or two."""
Range = tuple[datetime, datetime]
"""Start (inclusive) and end (exclusive)."""


def time_ranges(query: str, now: datetime) -> list[Range]:
    """Return up to MOST_RANGES times that `query` names, in UTC.

    A date without a year is the latest one that has begun.
    """
    text, now = query.lower(), now.astimezone(UTC)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    ranges_named = [_yesterday_or_today(match["day"], today) for match in _PLAIN.finditer(text)]
    ranges_named += [_range_ago(match["count"], match["unit"], today) for match in _RELATIVE.finditer(text)]
    ranges_named += [_calendar_range(match["which"], match["unit"], today) for match in _NAMED.finditer(text)]
    for match in _WEEKDAY.finditer(text):
        back = (today.weekday() - _DAYS.index(match["day"])) % 7 or 7
        ranges_named.append(_day_range(today - timedelta(days=back), 1))
    for form in _DATES:
        ranges_named += [
            date for match in form.finditer(text) if (date := _date_range(match.groupdict(), now)) is not None
        ]
    return list(dict.fromkeys(ranges_named))[:MOST_RANGES]


def _day_range(start: datetime, count: int) -> Range:
    return start, start + timedelta(days=count)


def _yesterday_or_today(word: str, today: datetime) -> Range:
    return _day_range(today - timedelta(days=1), 1) if word in {"yesterday", "last night"} else _day_range(today, 1)


def _range_ago(count: str, unit: str, today: datetime) -> Range:
    """Return the range around the day `count` units ago, half a unit on each side."""
    days = _UNIT_DAYS[unit]
    back = min((_COUNTS.get(count) or int(count)) * days, 365 * 50)
    around = timedelta(days=days // 2)
    start = today - timedelta(days=back)
    return start - around, start + around + timedelta(days=1)


def _calendar_range(which: str, unit: str, today: datetime) -> Range:
    if which == "past":
        return today - timedelta(days=_UNIT_DAYS[unit]), today + timedelta(days=1)
    if unit == "week":
        start = today - timedelta(days=today.weekday() + (7 if which == "last" else 0))
        return _day_range(start, 7)
    if unit == "month":
        start = today.replace(day=1)
        return _month_range((start - timedelta(days=1)).replace(day=1) if which == "last" else start)
    start = today.replace(month=1, day=1, year=today.year - (which == "last"))
    return start, start.replace(year=start.year + 1)


def _month_range(start: datetime) -> Range:
    return start, (start + timedelta(days=32)).replace(day=1)


def _date_range(given: dict[str, str | None], now: datetime) -> Range | None:
    """Return the day, month or year of a date, or None if it does not exist."""
    number, name = given.get("number"), given.get("month")
    month = (
        int(number) if number else next((at for at, full in enumerate(_MONTHS, 1) if full[:3] == (name or "")[:3]), 0)
    )
    day = int(given.get("day") or 0)
    year = int(given.get("year") or now.year)
    try:
        if not month:
            start = datetime(year, 1, 1, tzinfo=UTC)
            return start, start.replace(year=year + 1)
        start = datetime(year, month, day or 1, tzinfo=UTC)
    except ValueError:
        return None
    if given.get("year") is None and start > now:
        try:
            start = start.replace(year=year - 1)
        except ValueError:  # 29 February
            return None
    return _day_range(start, 1) if day else _month_range(start)
