"""The proof of a summary: check each line against the originals that it cites, without a model.

A line is supported if its cited originals contain its values, its names and enough of its other words. A line that is
not is attributed to the only stretch of the conversation that supports it. Without one, or with several, it is
unsupported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from compaction.claims.citations import normalize_citations, parse_lines, remove_empty_headings
from compaction.claims.claim import MOST_CITED, Claim, ClaimCounts, ProvedSummary
from compaction.claims.sources import ClaimSource, Sources, facts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from compaction.claims.citations import CitedLine, CitedSpan
    from compaction.claims.claim import Support
    from compaction.claims.sources import LineFacts
    from compaction.view import ViewMessage

Handling = Literal["mark", "drop", "refuse"]

MOST_NEIGHBOURS: Final = 4
"""Consecutive messages to which a line without citations may be attributed."""
_WORDS_WITH_FACTS: Final = 0.2
"""Share of a line's words that its sources must contain, in addition to all of its values and names."""
_WORDS_ALONE: Final = 0.34
"""Share for a line without values and names. The quality guard uses the same for rules."""
_WORDS_UNCITED: Final = 0.6
"""Share for a line that has no values, names or citations."""
_FEW_WORDS: Final = 3
"""Stems of a line below which a share is meaningless."""


class _Basis(NamedTuple):
    """The sources of a line and the strength of their support."""

    seqs: tuple[int, ...]
    support: Support


def prove(
    summary: str,
    zone: Sequence[ViewMessage],
    *,
    earlier: Sequence[Claim] = (),
    unsourced: str | None = None,
    times: Mapping[int, str] | None = None,
    names: Mapping[int, str] | None = None,
    beside: Sequence[str] = (),
    handling: Handling = "mark",
) -> ProvedSummary:
    """Return a summary without citations, with the sources of its lines in `zone` or in `earlier` claims.

    `unsourced` is an earlier summary without sources. Lines from it stay. With `drop`, other unsupported lines are
    removed. With `refuse`, the caller refuses the summary.
    """
    sources = Sources(zone, earlier=earlier, times=times, names=names, beside=beside)
    proof = _Prover(sources, earlier)
    inherited = ClaimSource(unsourced or "", ())
    kept: list[str | None] = []
    claims: list[Claim] = []
    cited = reattributed = unsupported = dropped = refusable = 0
    numbered = sources.seqs | {seq for source in sources.earlier for seq in source.seqs}
    for line in parse_lines(normalize_citations(summary, numbered)):
        if line.places is None:
            kept.append(line.text)
            continue
        borne, by_itself = proof.find_basis(line)
        if borne is not None:
            cited += by_itself
            reattributed += not by_itself
            claims.append(Claim(line.text.strip(), borne.seqs, borne.support))
        else:
            is_new = not supports(inherited, line.text)
            if is_new and handling == "drop":
                dropped += 1
                kept.append(None)
                continue
            unsupported += 1
            refusable += is_new
            claims.append(Claim(line.text.strip()))
        kept.append(line.text)
    counts = ClaimCounts(cited, reattributed, unsupported, dropped)
    return ProvedSummary("\n".join(remove_empty_headings(kept)), tuple(claims), counts, refusable)


class _Prover:
    def __init__(self, sources: Sources, earlier: Sequence[Claim]) -> None:
        self._sources = sources
        self._earlier = {claim.text: claim for claim in earlier}

    def find_basis(self, line: CitedLine) -> tuple[_Basis | None, bool]:
        """Return the sources of a line, or None, and whether the line cites them."""
        same = self._earlier.get(line.text.strip())
        if same is not None and same.support != "unsupported":
            return _Basis(same.seqs, same.support), True
        facts = facts_of(line.text)
        places = line.places or ()
        basis = self._check_citation(facts, places) if places else None
        if basis is not None:
            return basis, True
        return self._attribute_line(facts), False

    def _check_citation(self, facts: LineFacts, places: Sequence[CitedSpan]) -> _Basis | None:
        """Return the cited sources if they exist, support the line and are not too many."""
        originals = [
            source
            for source in self._sources.zone
            if any(place.first <= source.seqs[0] <= place.last for place in places)
        ]
        # A citation of everything is no source.
        if len(originals) > MOST_CITED or len(originals) == len(self._sources.zone) > MOST_NEIGHBOURS:
            return None
        by_earlier = [
            source
            for source in self._sources.earlier
            if any(place.first <= seq <= place.last for place in places for seq in source.seqs)
        ]
        chosen: list[ClaimSource] = [*originals]
        if by_earlier:
            chosen += self._select_earlier(facts, originals, by_earlier)
        seqs = tuple(sorted({seq for source in chosen for seq in source.seqs}))
        if not seqs or len(seqs) > MOST_CITED:
            return None
        if _is_quoted(facts, originals):
            return _Basis(seqs, "verbatim")
        return _Basis(seqs, "values") if _is_supported(facts, chosen, self._sources.is_in_context) else None

    def _select_earlier(
        self, facts: LineFacts, originals: Sequence[ClaimSource], earlier: Sequence[ClaimSource]
    ) -> list[ClaimSource]:
        """Return the lines of the earlier summary that support facts missing in the originals, the best for each."""
        needed: list[ClaimSource] = []
        ranked = sorted(earlier, key=lambda source: -len(source.words & facts.words))
        for fact in facts.facts:
            if not any(source.has(fact) for source in (*originals, *needed)):
                needed += [source for source in ranked if source.has(fact)][:1]
        return needed or ([] if originals else ranked[:1])

    def _attribute_line(self, facts: LineFacts) -> _Basis | None:
        """Return the only stretch that supports a line. If several contain it verbatim, return the newest."""
        quoting = [source for source in (*self._sources.earlier, *self._sources.zone) if _is_quoted(facts, [source])]
        if quoting:
            return _Basis(quoting[-1].seqs, quoting[-1].support)
        wanted = [fact for fact in facts.facts if not self._sources.is_in_context(fact)]
        share = _WORDS_WITH_FACTS if wanted else _WORDS_UNCITED
        if not wanted and len(facts.words) < _FEW_WORDS:
            return None
        by_earlier = [
            source
            for source in self._sources.earlier
            if all(map(source.has, wanted)) and _shares_words(facts, [source], share)
        ]
        stretches = self._find_stretches(facts, wanted, share)
        if len(stretches) + len({source.seqs for source in by_earlier}) != 1:
            return None
        seqs = by_earlier[0].seqs if by_earlier else tuple(self._sources.zone[place].seqs[0] for place in stretches[0])
        return _Basis(seqs, "values")

    def _find_stretches(self, facts: LineFacts, wanted: Sequence[str], share: float) -> list[range]:
        """Return the smallest stretches of the zone that support a line. Adjacent ones are joined."""
        zone = self._sources.zone
        where: list[list[int]] = []
        for fact in wanted:
            where.append(self._sources.find_places(fact))
            if not where[-1]:
                return []
        starts: Iterable[int] = range(len(zone))
        if where:
            rarest = min(where, key=len)
            starts = sorted({max(0, place - back) for place in rarest for back in range(MOST_NEIGHBOURS)})
        sizes = range(1, MOST_NEIGHBOURS + 1) if where else range(1, 2)
        for size in sizes:
            borne = []
            for start in starts:
                window = zone[start : start + size]
                if len(window) < size or not all(
                    any(source.is_likely_to_have(fact) for source in window) for fact in wanted
                ):
                    continue
                if _shares_words(facts, window, share):
                    borne.append(range(start, start + size))
            if borne:
                return _join_stretches(borne)
        return []


def _join_stretches(stretches: Sequence[range]) -> list[range]:
    joined: list[range] = []
    for stretch in stretches:
        if joined and stretch.start <= joined[-1].stop and stretch.stop - joined[-1].start <= MOST_CITED:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, stretch.stop))
        else:
            joined.append(stretch)
    return joined


def supports(source: ClaimSource, line: str) -> bool:
    """Return whether a source alone supports a line."""
    return _is_supported(facts_of(line), [source], lambda _: False)


def _is_quoted(facts: LineFacts, sources: Sequence[ClaimSource]) -> bool:
    return bool(facts.pieces) and all(any(source.quotes(piece) for source in sources) for piece in facts.pieces)


def _is_supported(facts: LineFacts, sources: Sequence[ClaimSource], beside: Callable[[str], bool]) -> bool:
    """Return whether sources support a line. Facts in the remaining context (`beside`) need no source."""
    standing = [any(source.has(fact) for source in sources) for fact in facts.facts]
    if not all(stands or beside(fact) for fact, stands in zip(facts.facts, standing, strict=True)):
        return False
    if any(standing):
        return _shares_words(facts, sources, _WORDS_WITH_FACTS)
    return _shares_words(facts, sources, _WORDS_ALONE) and bool(facts.words)


def _shares_words(facts: LineFacts, sources: Sequence[ClaimSource], share: float) -> bool:
    """Return whether sources contain a share of a line's words, or one of them if there are few."""
    common = len(facts.words & frozenset().union(*(source.words for source in sources)))
    if len(facts.words) < _FEW_WORDS:
        return common > 0 or not facts.words
    return common >= share * len(facts.words)
