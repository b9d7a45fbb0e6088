"""Sources of a summary's lines, and the search for values, names and words in them."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from compaction.quality.evidence import mentions, terms
from compaction.text.clauses import GAP, clip_text
from compaction.text.dates import with_iso_dates
from compaction.text.identifiers import Text, ValueKind, fold_text, kind_of
from compaction.text.salience import values
from compaction.view import WRITTEN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compaction.claims.claim import Claim, Support
    from compaction.view import ViewMessage

_READ_FOR_WORDS: Final = 20_000
"""Characters of a message whose words are compared. Values are looked up in the whole message."""
_LEAST_PIECE: Final = 12
"""Characters below which a verbatim match may be a coincidence."""
_SHOUTED: Final = 0.6
"""Share of capitalized words from which capitals do not indicate names, as in titles and in German."""

_TELLING_WORDS: Final = 6
_STEM: Final = 3
"""Characters below which a word has no stem in `terms`."""

_LEAD: Final = re.compile(
    r"^(?:[-*\u2022>\s]|\d{1,3}[.)]\s)*(?:(?:user|assistant|result|latest request): )?", re.IGNORECASE
)
_WORD: Final = re.compile(r"[^\W\d_][\w\u2019'-]*")
_NAME: Final = re.compile(
    r"(?<![.!?:\u2022*(\"'\u201c\u2018-] )(?<![\w/.@#(\"'\u201c\u2018*])[^\W\d_a-z][^\W\d_]{2,}(?![\w/@])"
)
_POSSESSIVE: Final = re.compile(r"['\u2019]s?\Z")
_COUNTS: Final = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
_ENDING: Final = r"(?:['\u2019]?[^\W\d_]{1,2})?"
"""Inflection of a name. A longer ending makes another name."""
_PUT_TOGETHER: Final = frozenset({ValueKind.PATH, ValueKind.URL})
"""Values that a summary may shorten or complete."""
_NARRATED: Final = terms(
    "user assistant conversation message asked asks wants wanted requested request said says told confirmed"
)
"""Stems that attribute speech. They need not occur in the originals."""


class LineFacts(NamedTuple):
    """Searchable parts of a line: exact values and names as spelled, and the stems of its words."""

    facts: tuple[str, ...]
    words: frozenset[str]
    pieces: tuple[str, ...]
    """Normalized text between gaps. Empty if the line is too short for a verbatim match."""


def facts_of(line: str) -> LineFacts:
    """Return the searchable parts of a line."""
    said = _LEAD.sub("", line, count=1).strip().strip("*_`")
    text = with_iso_dates(said)
    exact = [value for value in values(text) if any(char.isalnum() for char in value)]
    # The first word of a line is always capitalized. Values are not words.
    words = [word for word in _WORD.findall(text)[1:] if len(word) > _STEM and not any(map(str.isdigit, word))]
    names: list[str] = []
    if len(words) < _TELLING_WORDS or sum(word[0].isupper() for word in words) <= _SHOUTED * len(words):
        names = [
            name
            for match in _NAME.finditer(text)
            if match.start() and match[0][0].isupper() and (name := match[0].lower()) not in exact
        ]
    pieces = [_normalize_piece(piece) for piece in said.split(GAP.strip())]
    kept = tuple(piece for piece in pieces if piece)
    is_long = bool(kept) and max(map(len, kept)) >= _LEAST_PIECE
    return LineFacts(tuple(dict.fromkeys([*exact, *names])), terms(text) - _NARRATED, kept if is_long else ())


class ClaimSource:
    """A possible source of lines: an original, or a line of an earlier summary with its sources."""

    def __init__(self, text: str, seqs: tuple[int, ...], *, support: Support = "verbatim") -> None:
        self._text = text
        self.seqs = seqs
        self.support = support
        """Support of a line that quotes this source."""
        self._known: dict[str, bool] = {}

    @cached_property
    def _lookup(self) -> Text:
        return Text(" ".join(self._text.split()))

    @cached_property
    def words(self) -> frozenset[str]:
        """Return the stems of the source's content words."""
        return terms(clip_text(self._text, _READ_FOR_WORDS))

    def has(self, fact: str) -> bool:
        """Return whether the source contains a value or a name."""
        known = self._known.get(fact)
        if known is None:
            known = self._known[fact] = _contains_fact(self._lookup, fact)
        return known

    def is_likely_to_have(self, fact: str) -> bool:
        """Return whether a fast search finds a value or a name. It misses numbers in another notation."""
        known = self._known.get(fact)
        return (
            known
            if known is not None
            else any(map(self._lookup.folded_text.__contains__, _search_terms(fact))) and self.has(fact)
        )

    def quotes(self, piece: str) -> bool:
        """Return whether the source contains a normalized piece of text verbatim."""
        return piece in self._lookup.folded_text


class Sources:
    """All sources of one summary's lines in order: the earlier summary, then the zone.

    `earlier` are the claims of the earlier summary, which lead to the originals of earlier zones. `times` and `names`
    are the known times and authors of messages by seq. `beside` are texts that stay in the context, whose names a line
    may use without citing them.
    """

    def __init__(
        self,
        zone: Sequence[ViewMessage],
        *,
        earlier: Sequence[Claim] = (),
        times: Mapping[int, str] | None = None,
        names: Mapping[int, str] | None = None,
        beside: Sequence[str] = (),
    ) -> None:
        self.earlier = [
            ClaimSource(claim.text, claim.seqs, support=claim.support)
            for claim in earlier
            if claim.support != "unsupported"
        ]
        known = [each for each in (times, names) if each]
        by_seq: dict[int, list[str]] = {}
        for message in zone:
            if message.seq != WRITTEN:
                said = [text for each in mentions(message) for text in (each.tool, each.text) if text]
                of_it = [each[message.seq] for each in known if message.seq in each]
                by_seq.setdefault(message.seq, of_it).extend(said)
        self.zone = [ClaimSource("\n".join(texts), (seq,)) for seq, texts in sorted(by_seq.items())]
        self.seqs = by_seq.keys()
        self._beside = ClaimSource("\n".join(beside), ())

    def is_in_context(self, fact: str) -> bool:
        """Return whether the remaining context contains a value or a name."""
        return self._beside.has(fact)

    def find_places(self, fact: str) -> list[int]:
        """Return the places in the zone that contain a value or a name."""
        return [place for place, source in enumerate(self.zone) if source.is_likely_to_have(fact)]


def _normalize_piece(text: str) -> str:
    return Text(" ".join(text.split())).folded_text.strip(" .,;:!?\"'\u201c\u201d")


def _search_terms(fact: str) -> list[str]:
    """Return texts of which one must occur for a fact to be present."""
    if fact.isdecimal() and int(fact) < len(_COUNTS):
        return [fact, _COUNTS[int(fact)]]
    if kind_of(fact) is ValueKind.DATE:
        return [fact, fact[:4]]
    if kind_of(fact) is ValueKind.PATH:
        return [fact.rsplit("/", 1)[-1]]
    return [_POSSESSIVE.sub("", fold_text(fact).lstrip("$\u20ac\u00a3\u00a5#"))]


def _contains_fact(text: Text, fact: str) -> bool:
    if text.holds(fact):
        return True
    if any(char.isdigit() for char in fact):
        if fact.isdecimal() and int(fact) < len(_COUNTS):
            return text.holds(_COUNTS[int(fact)])
        # A part of a number is another number.
        return kind_of(fact) in _PUT_TOGETHER and text.knows(fact)
    if "/" in fact or "@" in fact or "_" in fact or "." in fact:
        return text.knows(fact)
    name = re.escape(_POSSESSIVE.sub("", fact))
    return re.search(rf"(?<![^\W_]){name}{_ENDING}(?![^\W_])", text.folded_text) is not None
