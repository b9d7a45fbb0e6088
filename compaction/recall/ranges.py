"""Ranges: by what names the messages that a view does not show any more can be had back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from compaction.frames.phrases import PHRASES
from compaction.frames.wordings import WORDINGS
from compaction.recall import references

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import date

    from compaction.coverage import Span

MOST_NAMED: Final = 20
"""Ranges that a note names, the newest: 20,000 messages in a row, in some 80 tokens."""
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def note(spans: Sequence[Span], days: Mapping[int, date], language: str = "english") -> str:
    """Return the line that says how many messages are not shown, of when, and by which references they come back.

    `spans` are those messages, in order and apart from each other; none gives "". `days` are in UTC, by seq; where
    those of the first and the last message are not known, none is named.
    """
    if not spans:
        return ""
    count = sum(span.last - span.first + 1 for span in spans)
    parts = [references.span(*part) for span in spans for part in _parts(span.first, span.last)]
    named = ", ".join(parts[-MOST_NAMED:]) + (PHRASES[language].older_by_words if len(parts) > MOST_NAMED else "")
    wording = WORDINGS[language]
    when = _when(days.get(spans[0].first), days.get(spans[-1].last), in_english=language == "english")
    template = wording.one_left_out if count == 1 else wording.left_out
    return template.format(count=f"{count:,}", when=when, named=named)


def _parts(first: int, last: int) -> Iterable[tuple[int, int]]:
    """Yield a range in parts that one reference may name."""
    for start in range(first, last + 1, references.MOST_MESSAGES):
        yield start, min(last, start + references.MOST_MESSAGES - 1)


def _when(first: date | None, last: date | None, *, in_english: bool) -> str:
    if first is None or last is None:
        return ""
    if not in_english:
        return f" ({first})" if first == last else f" ({first} \u2013 {last})"
    end = f"{_day(last)} {last.year}"
    if first == last:
        return f" of {end}"
    return f" of {_day(first)}{'' if first.year == last.year else f' {first.year}'} to {end}"


def _day(day: date) -> str:
    return f"{day.day} {_MONTHS[day.month - 1]}"
