"""Notes that name the messages missing from a view by references, so that a model can recall them."""

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
"""Newest ranges that a note names: up to 20,000 consecutive messages in about 80 tokens."""
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def missing_ranges_note(spans: Sequence[Span], days: Mapping[int, date], language: str = "english") -> str:
    """Return a line with the number, dates and references of the missing messages, or "" without `spans`.

    `spans` are ordered and not adjacent. `days` maps seqs to days in UTC. The dates are omitted if the day of the first
    or of the last message is unknown.
    """
    if not spans:
        return ""
    count = sum(span.last - span.first + 1 for span in spans)
    parts = [references.span(*part) for span in spans for part in _split_range(span.first, span.last)]
    named = ", ".join(parts[-MOST_NAMED:]) + (PHRASES[language].older_by_words if len(parts) > MOST_NAMED else "")
    wording = WORDINGS[language]
    when = _format_period(days.get(spans[0].first), days.get(spans[-1].last), in_english=language == "english")
    template = wording.one_left_out if count == 1 else wording.left_out
    return template.format(count=f"{count:,}", when=when, named=named)


def _split_range(first: int, last: int) -> Iterable[tuple[int, int]]:
    """Yield a range in parts that one reference may name."""
    for start in range(first, last + 1, references.MOST_MESSAGES):
        yield start, min(last, start + references.MOST_MESSAGES - 1)


def _format_period(first: date | None, last: date | None, *, in_english: bool) -> str:
    if first is None or last is None:
        return ""
    if not in_english:
        return f" ({first})" if first == last else f" ({first} \u2013 {last})"
    end = f"{_format_day(last)} {last.year}"
    if first == last:
        return f" of {end}"
    return f" of {_format_day(first)}{'' if first.year == last.year else f' {first.year}'} to {end}"


def _format_day(day: date) -> str:
    return f"{day.day} {_MONTHS[day.month - 1]}"
