"""Citations in the lines of a summary: `[m12]`, `[m12-15]`, `[m12, m15-18]`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from compaction.extract.extractive import HEADING
from compaction.frames.phrases import NOTES
from compaction.summary.zone import SAYS_NOTHING, carried_over
from compaction.text.dates import is_day_alone

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from compaction.claims.claim import Claim

_DASH: Final = r"[ \t]?[-\u2010-\u2015\u2212~][ \t]?"
_PLACE: Final = rf"m\d{{1,9}}(?:\.\d{{1,6}})?(?:{_DASH}m?\d{{1,9}}(?:\.\d{{1,6}})?)?"
_FOREIGN: Final = r"conv_[0-9a-f]{1,64}:m[\d.m-]{1,30}"
"""A place in another conversation, as recall names it. It is never a source."""
_LIST: Final = rf"(?:{_PLACE}|{_FOREIGN})(?:[ \t]?[,;][ \t]?(?:{_PLACE}|{_FOREIGN}|\d{{1,9}}(?:{_DASH}m?\d{{1,9}})?))*"
_CITATION: Final = re.compile(rf"\[(?P<list>{_LIST})\]")
_BARE: Final = re.compile(
    rf"\[(?P<list>\d{{1,9}}(?:{_DASH}\d{{1,9}})?(?:[,;][ \t]?\d{{1,9}}(?:{_DASH}\d{{1,9}})?)*)\](?=[.,;]?[ \t]*$)",
    re.MULTILINE,
)
"""Numbers in brackets at the end of a line."""
_GLUED: Final = re.compile(r"[\w`\"'\)\]]")
"""A bracket after such a character is an index, as in `rows[m12]`."""
_CUT: Final = re.compile(r"\[m?(?:(?<=m)\d[\dm.,;\u2010-\u2015\u2212 -]*)?")
"""A truncated citation at the end of a line."""
_RANGE: Final = re.compile(rf"(?<![\w:])m?(?P<first>\d{{1,9}})(?:\.\d+)?(?:{_DASH}m?(?P<last>\d{{1,9}}))?(?!\w)")
_HEADING: Final = re.compile(r"(#{1,6})\s")
_INTRODUCES: Final = 7
"""Level of a line that introduces a list, below every heading."""
_END: Final = re.compile(r"[\s.,;:!?)*_]*")


class CitedSpan(NamedTuple):
    """The messages `first..last` (seqs, inclusive) of a citation. They may not exist."""

    first: int
    last: int


class CitedLine(NamedTuple):
    """A line without its citations. `places` is None for a heading, a blank line or a note, which make no claim."""

    text: str
    places: tuple[CitedSpan, ...] | None


def parse_lines(summary: str) -> list[CitedLine]:
    """Return the lines of a summary with their citations.

    A citation on a line of its own belongs to the line before.
    """
    lines: list[CitedLine] = []
    for raw in summary.split("\n"):
        text, places = _strip_line(raw)
        if places and not any(char.isalnum() for char in text):
            before = next((at for at in range(len(lines) - 1, -1, -1) if lines[at].places is not None), None)
            if before is not None:
                lines[before] = CitedLine(lines[before].text, (*(lines[before].places or ()), *places))
            continue
        lines.append(CitedLine(text, places if makes_claim(text) else None))
    return lines


def normalize_citations(summary: str, seqs: AbstractSet[int]) -> str:
    """Return a summary with `[4]` or `[4-6]` at the end of a line rewritten as `[m4]`, if these are seqs.

    The model sees messages numbered in this way.
    """

    def marked(match: re.Match[str]) -> str:
        numbers = {int(number) for number in re.findall(r"\d+", match["list"])}
        marked_list = re.sub(r"(?<!\d)(?=\d)", "m", match["list"])
        return f"[{marked_list}]" if numbers <= seqs else match[0]

    return _BARE.sub(marked, summary) if "[" in summary else summary


def strip_citations(summary: str) -> str:
    """Return a summary without citations, including truncated ones."""
    return "\n".join(line.text for line in parse_lines(summary)) if "[" in summary else summary


def add_citations(summary: str, claims: Sequence[Claim]) -> str:
    """Return a summary without citations with those of its claims added. The claims have no citations either."""
    sources: dict[str, list[Claim]] = {}
    for claim in claims:
        sources.setdefault(claim.text, []).append(claim)
    lines = []
    for line in summary.split("\n"):
        same = sources.get(line.strip())
        seqs = (same.pop(0) if len(same) > 1 else same[0]).seqs if same else ()
        lines.append(f"{line.rstrip()} [{format_seqs(seqs)}]" if seqs else line)
    return "\n".join(lines)


def cite_previous(previous: str, claims: Sequence[Claim]) -> str:
    """Return an earlier summary as the model reads it, with the sources of its lines."""
    return add_citations(carried_over(previous), claims)


def copy_citations(summary: str, draft: str) -> str:
    """Return a summary whose lines have the citations of the same lines in `draft`."""
    places: dict[str, tuple[CitedSpan, ...]] = {
        line.text.strip(): line.places for line in parse_lines(draft) if line.places
    }
    lines = []
    for line in summary.split("\n"):
        cited = places.get(line.strip())
        written = [f"m{first}" if first == last else f"m{first}-{last}" for first, last in cited or ()]
        lines.append(f"{line.rstrip()} [{', '.join(written)}]" if written else line)
    return "\n".join(lines)


def format_seqs(seqs: Sequence[int]) -> str:
    """Return seqs in the form of a citation, `m12-15, m20`."""
    spans: list[list[int]] = []
    for seq in seqs:
        if spans and spans[-1][1] == seq - 1:
            spans[-1][1] = seq
        else:
            spans.append([seq, seq])
    return ", ".join(f"m{first}" if first == last else f"m{first}-{last}" for first, last in spans)


def _strip_line(line: str) -> tuple[str, tuple[CitedSpan, ...]]:
    """Return a line without its citations, and the places that they name."""
    places: tuple[CitedSpan, ...] = ()
    while "[" in line:
        text, named_there = _strip_line_once(line)
        if text == line:
            break
        # Removing a citation may create another one, so repeat until none is left.
        line, places = text, (*places, *named_there)
    return line, places


def _strip_line_once(line: str) -> tuple[str, list[CitedSpan]]:
    places: list[CitedSpan] = []
    kept, at = "", 0
    matches = list(_CITATION.finditer(line))
    end = len(line)
    for match in reversed(matches):
        # After `end` there are only citations and punctuation.
        if not _END.fullmatch(line, match.end(), end):
            break
        end = match.start()
    for match in matches:
        is_glued = match.start() > at and _GLUED.match(line[match.start() - 1])
        if is_glued and match.start() < end:
            continue
        kept += line[at : match.start()].rstrip(" \t")
        at = match.end()
        places += _places(match["list"])
    text = kept + line[at:]
    while (begins := text.rfind("[")) >= 0 and _CUT.fullmatch(text, begins):
        # The number after the last comma may be truncated.
        places += _places(",".join(re.split(r"[,;]", text[begins + 1 :])[:-1]))
        text = text[:begins].rstrip(" \t")
    return (text.rstrip() if text != line else line), places


def _places(text: str) -> list[CitedSpan]:
    pieces = (piece for piece in re.split(r"[,;]", text) if ":" not in piece)
    matches = (match for piece in pieces if (match := _RANGE.search(piece)))
    places = [CitedSpan(int(match["first"]), int(match["last"] or match["first"])) for match in matches]
    return [place for place in places if place.first <= place.last]


def remove_empty_headings(lines: Sequence[str | None]) -> list[str]:
    """Return lines without the omitted ones (None), and without headings that have no lines left."""
    levels = [_heading_level(line) if line is not None else None for line in lines]
    gone: set[int] = set()
    for at, level in enumerate(levels):
        if level is None:
            continue
        end = next((to for to in range(at + 1, len(lines)) if (levels[to] or level + 1) <= level), len(lines))
        below = range(at + 1, end)
        says = any(
            levels[to] is None and any(char.isalnum() for char in line)
            for to in below
            if (line := lines[to]) is not None
        )
        if not says and any(lines[to] is None for to in below):
            gone.update(range(at, end))
    return [line for at, line in enumerate(lines) if line is not None and at not in gone]


def _heading_level(line: str) -> int | None:
    """Return the level of a heading, 1 for the highest, or None for another line."""
    text = line.strip()
    if marks := _HEADING.match(text):
        return len(marks[1])
    introduces = text.rstrip("*_").endswith(":") and not makes_claim(line)
    return _INTRODUCES if introduces and any(char.isalnum() for char in text) else None


def line_text(line: str) -> str:
    """Return a line of a summary without its citations."""
    return _strip_line(line)[0].strip()


def makes_claim(line: str) -> bool:
    """Return whether a line makes a claim about the conversation."""
    text = line.strip()
    if not any(char.isalnum() for char in text) or text.lower().strip("*_") in SAYS_NOTHING:
        return False
    if text.startswith(("#", *NOTES)) or HEADING.match(text) or is_day_alone(text):
        return False
    # A line that introduces a list makes no claim.
    return not (text.rstrip("*_").endswith(":") and not any(char.isdigit() for char in text))
