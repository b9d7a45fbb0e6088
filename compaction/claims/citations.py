"""Citations: `[m12]`, `[m12-15]`, `[m12, m15-18]` in the lines of a summary, read, taken out and put in."""

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
"""A place in another conversation, as recall names them: never a source here."""
_LIST: Final = rf"(?:{_PLACE}|{_FOREIGN})(?:[ \t]?[,;][ \t]?(?:{_PLACE}|{_FOREIGN}|\d{{1,9}}(?:{_DASH}m?\d{{1,9}})?))*"
_CITATION: Final = re.compile(rf"\[(?P<list>{_LIST})\]")
_BARE: Final = re.compile(
    rf"\[(?P<list>\d{{1,9}}(?:{_DASH}\d{{1,9}})?(?:[,;][ \t]?\d{{1,9}}(?:{_DASH}\d{{1,9}})?)*)\](?=[.,;]?[ \t]*$)",
    re.MULTILINE,
)
"""Numbers in brackets at the end of a line."""
_GLUED: Final = re.compile(r"[\w`\"'\)\]]")
"""Before a bracket in the middle of a line it is more likely an index into something, as in `rows[m12]`."""
_CUT: Final = re.compile(r"\[m?(?:(?<=m)\d[\dm.,;\u2010-\u2015\u2212 -]*)?")
"""A citation whose end was not written any more, at the end of a line."""
_RANGE: Final = re.compile(rf"(?<![\w:])m?(?P<first>\d{{1,9}})(?:\.\d+)?(?:{_DASH}m?(?P<last>\d{{1,9}}))?(?!\w)")
_HEADING: Final = re.compile(r"(#{1,6})\s")
_INTRODUCES: Final = 7
"""Level of a line that introduces a list: below every heading."""
_END: Final = re.compile(r"[\s.,;:!?)*_]*")


class CitedSpan(NamedTuple):
    """The messages `first..last` (seqs, inclusive) that a citation names; they need not exist."""

    first: int
    last: int


class CitedLine(NamedTuple):
    """A line without its citations; `places` is None where it claims nothing: a heading, a blank line, a note."""

    text: str
    places: tuple[CitedSpan, ...] | None


def read(summary: str) -> list[CitedLine]:
    """Return the lines of a summary with what each cites; a citation that stands alone belongs to the line before."""
    lines: list[CitedLine] = []
    for raw in summary.split("\n"):
        text, places = _taken_out(raw)
        if places and not any(char.isalnum() for char in text):
            before = next((at for at in range(len(lines) - 1, -1, -1) if lines[at].places is not None), None)
            if before is not None:
                lines[before] = CitedLine(lines[before].text, (*(lines[before].places or ()), *places))
            continue
        lines.append(CitedLine(text, places if says_something(text) else None))
    return lines


def in_form(summary: str, seqs: AbstractSet[int]) -> str:
    """Return a summary in which `[4]` or `[4-6]` at the end of a line is written `[m4]`, where these are seqs.

    Messages are numbered so in what a model is given.
    """

    def marked(match: re.Match[str]) -> str:
        numbers = {int(number) for number in re.findall(r"\d+", match["list"])}
        marked_list = re.sub(r"(?<!\d)(?=\d)", "m", match["list"])
        return f"[{marked_list}]" if numbers <= seqs else match[0]

    return _BARE.sub(marked, summary) if "[" in summary else summary


def without_citations(summary: str) -> str:
    """Return a summary with every citation taken out, one that was cut in half too."""
    return "\n".join(line.text for line in read(summary)) if "[" in summary else summary


def with_citations(summary: str, claims: Sequence[Claim]) -> str:
    """Return a summary whose lines name the originals that its claims rest on; both without citations before."""
    sources: dict[str, list[Claim]] = {}
    for claim in claims:
        sources.setdefault(claim.text, []).append(claim)
    lines = []
    for line in summary.split("\n"):
        same = sources.get(line.strip())
        seqs = (same.pop(0) if len(same) > 1 else same[0]).seqs if same else ()
        lines.append(f"{line.rstrip()} [{named(seqs)}]" if seqs else line)
    return "\n".join(lines)


def as_read(previous: str, claims: Sequence[Claim]) -> str:
    """Return an earlier summary as a model reads it: its lines name the originals that they rest on."""
    return with_citations(carried_over(previous), claims)


def cited_as(summary: str, draft: str) -> str:
    """Return a summary without citations whose lines cite what the same lines of a draft did."""
    places: dict[str, tuple[CitedSpan, ...]] = {line.text.strip(): line.places for line in read(draft) if line.places}
    lines = []
    for line in summary.split("\n"):
        cited = places.get(line.strip())
        written = [f"m{first}" if first == last else f"m{first}-{last}" for first, last in cited or ()]
        lines.append(f"{line.rstrip()} [{', '.join(written)}]" if written else line)
    return "\n".join(lines)


def named(seqs: Sequence[int]) -> str:
    """Return seqs as a citation has them, `m12-15, m20`."""
    spans: list[list[int]] = []
    for seq in seqs:
        if spans and spans[-1][1] == seq - 1:
            spans[-1][1] = seq
        else:
            spans.append([seq, seq])
    return ", ".join(f"m{first}" if first == last else f"m{first}-{last}" for first, last in spans)


def _taken_out(line: str) -> tuple[str, tuple[CitedSpan, ...]]:
    """Return a line without its citations, and what they name; a place elsewhere names nothing."""
    places: tuple[CitedSpan, ...] = ()
    while "[" in line:
        text, named_there = _once_taken_out(line)
        if text == line:
            break
        # What is left may read as a citation only now: a text without citations has to stay as it is.
        line, places = text, (*places, *named_there)
    return line, places


def _once_taken_out(line: str) -> tuple[str, list[CitedSpan]]:
    places: list[CitedSpan] = []
    kept, at = "", 0
    matches = list(_CITATION.finditer(line))
    end = len(line)
    for match in reversed(matches):
        # Behind `end` there are only citations, and what ends a sentence.
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
        # The number behind the last comma may be one that goes on.
        places += _places(",".join(re.split(r"[,;]", text[begins + 1 :])[:-1]))
        text = text[:begins].rstrip(" \t")
    return (text.rstrip() if text != line else line), places


def _places(text: str) -> list[CitedSpan]:
    pieces = (piece for piece in re.split(r"[,;]", text) if ":" not in piece)
    matches = (match for piece in pieces if (match := _RANGE.search(piece)))
    places = [CitedSpan(int(match["first"]), int(match["last"] or match["first"])) for match in matches]
    return [place for place in places if place.first <= place.last]


def left_over(lines: Sequence[str | None]) -> list[str]:
    """Return lines without those that were left out (None), and without a heading that had no others."""
    levels = [_level(line) if line is not None else None for line in lines]
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


def _level(line: str) -> int | None:
    """Return how high a line stands as a heading, 1 the highest; None for one that is none."""
    text = line.strip()
    if marks := _HEADING.match(text):
        return len(marks[1])
    introduces = text.rstrip("*_").endswith(":") and not says_something(line)
    return _INTRODUCES if introduces and any(char.isalnum() for char in text) else None


def line_text(line: str) -> str:
    """Return what a line of a summary says, without its citations."""
    return _taken_out(line)[0].strip()


def says_something(line: str) -> bool:
    """Tell whether a line says something of the conversation."""
    text = line.strip()
    if not any(char.isalnum() for char in text) or text.lower().strip("*_") in SAYS_NOTHING:
        return False
    if text.startswith(("#", *NOTES)) or HEADING.match(text) or is_day_alone(text):
        return False
    # A line that introduces a list says nothing itself.
    return not (text.rstrip("*_").endswith(":") and not any(char.isdigit() for char in text))
