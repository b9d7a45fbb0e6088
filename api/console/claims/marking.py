"""The lines of a summary beside the originals that they rest on, the words that bear them out marked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from api.console.views.content import parts
from compaction.claims.citations import line_text
from compaction.claims.packing import PackedClaim
from compaction.claims.sources import facts_of
from compaction.quality.evidence import terms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from api.console.views.content import Part
    from compaction.claims.sources import LineFacts
    from store.tables import AnyRow

SHOWN_CHARS: Final = 20_000
"""Characters of one part of an original that are shown beside a line."""
_WORD: Final = re.compile(r"\S+")
_SHORT: Final = 3
"""Characters; a shorter value is marked only where it is the whole word."""


class SummaryLine(NamedTuple):
    """A line of a summary; `support` is None where it claims nothing, as a heading does."""

    number: int
    text: str
    seqs: Sequence[int] = ()
    support: str | None = None


class Piece(NamedTuple):
    """A stretch of text, and whether it bears the line out."""

    text: str
    is_marked: bool


class MarkedPart(NamedTuple):
    """A part of an original."""

    part: Part
    pieces: Sequence[Piece]


class CitedMessage(NamedTuple):
    """An original that a line rests on."""

    seq: int
    role: str
    parts: Sequence[MarkedPart]


def summary_lines(row: AnyRow) -> list[SummaryLine]:
    """Return the lines of a snapshot's summary."""
    rows = [msgspec.convert(claim, PackedClaim) for claim in row.claims or ()]
    claims = {claim.line: claim for claim in rows}
    return [
        SummaryLine(number, line_text(line), claims[number].seqs, claims[number].support)
        if number in claims
        else SummaryLine(number, line.rstrip())
        for number, line in enumerate((row.summary or "").split("\n"))
    ]


def cited_message(line: SummaryLine, seq: int, role: str, content: Any) -> CitedMessage:
    """Return an original with what of it bears a line out marked."""
    facts = facts_of(line.text)
    return CitedMessage(seq, role, [MarkedPart(part, marked(part.text, facts)) for part in parts(content, SHOWN_CHARS)])


def marked(text: str, facts: LineFacts) -> list[Piece]:
    """Return a text in pieces, those marked that have a line's values, names or words; neighbours are one."""
    pieces: list[Piece] = []
    at = 0
    for match in _WORD.finditer(text):
        between, word = text[at : match.start()], match[0]
        at = match.end()
        is_marked = _bears(word, facts)
        if pieces and pieces[-1].is_marked == is_marked and "\n" not in between:
            pieces[-1] = Piece(pieces[-1].text + between + word, is_marked)
            continue
        if between:
            pieces.append(Piece(between, is_marked=False))
        pieces.append(Piece(word, is_marked))
    return [*pieces, Piece(text[at:], is_marked=False)] if at < len(text) else pieces


def _bears(word: str, facts: LineFacts) -> bool:
    bare = word.lower().strip(".,;:!?()[]{}\"'\u201c\u201d*`")
    plain = bare.replace(",", "")
    if any(fact in {bare, plain} or (len(fact) > _SHORT and fact in bare) for fact in facts.facts):
        return True
    return bool(terms(word) & facts.words)
