"""The proof of a summary: each of its lines is held against the originals that it cites, without a model.

A line is borne out where its values and names stand in what it cites, and enough of its other words do. One that is not
is attributed to the one stretch of the conversation that bears it out; where there is none, or more than one, it is
unsupported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from compaction.claims.citations import in_form, left_over, read
from compaction.claims.claim import MOST_CITED, Claim, ClaimCounts, Proved
from compaction.claims.sources import ClaimSource, Sources, facts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from compaction.claims.citations import CitedLine, CitedSpan
    from compaction.claims.claim import Support
    from compaction.claims.sources import LineFacts
    from compaction.view import ViewMessage

Handling = Literal["mark", "drop", "refuse"]

MOST_NEIGHBOURS: Final = 4
"""Messages in a row that one line may sum up together where it cites none itself."""
_WORDS_WITH_FACTS: Final = 0.2
"""Share of a line's words that its sources have to have, beside all of its values and names."""
_WORDS_ALONE: Final = 0.34
"""The same where it has no value or name; the quality guard's figure for rules."""
_WORDS_UNCITED: Final = 0.6
"""The same where nobody named its sources: words alone are little to find them by."""
_FEW_WORDS: Final = 3
"""Stems; a share of fewer says nothing."""


class _Basis(NamedTuple):
    """What a line rests on, and how firmly."""

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
) -> Proved:
    """Return a summary without its citations, and what each of its lines rests on in `zone` or by `earlier` claims.

    `unsourced` is an earlier summary that named no sources: what comes from there cannot have any, and stays. With
    `drop` other lines without support are left out; `refuse` leaves the refusal to the caller.
    """
    sources = Sources(zone, earlier=earlier, times=times, names=names, beside=beside)
    proof = _Proof(sources, earlier)
    inherited = ClaimSource(unsourced or "", ())
    kept: list[str | None] = []
    claims: list[Claim] = []
    cited = reattributed = unsupported = dropped = refusable = 0
    numbered = sources.seqs | {seq for source in sources.earlier for seq in source.seqs}
    for line in read(in_form(summary, numbered)):
        if line.places is None:
            kept.append(line.text)
            continue
        borne, by_itself = proof.of(line)
        if borne is not None:
            cited += by_itself
            reattributed += not by_itself
            claims.append(Claim(line.text.strip(), borne.seqs, borne.support))
        else:
            is_new = not bears_out(inherited, line.text)
            if is_new and handling == "drop":
                dropped += 1
                kept.append(None)
                continue
            unsupported += 1
            refusable += is_new
            claims.append(Claim(line.text.strip()))
        kept.append(line.text)
    counts = ClaimCounts(cited, reattributed, unsupported, dropped)
    return Proved("\n".join(left_over(kept)), tuple(claims), counts, refusable)


class _Proof:
    def __init__(self, sources: Sources, earlier: Sequence[Claim]) -> None:
        self._sources = sources
        self._earlier = {claim.text: claim for claim in earlier}

    def of(self, line: CitedLine) -> tuple[_Basis | None, bool]:
        """Return what a line rests on, None for nothing, and whether that is what it cites."""
        same = self._earlier.get(line.text.strip())
        if same is not None and same.support != "unsupported":
            return _Basis(same.seqs, same.support), True
        facts = facts_of(line.text)
        places = line.places or ()
        basis = self._cited(facts, places) if places else None
        if basis is not None:
            return basis, True
        return self._attributed(facts), False

    def _cited(self, facts: LineFacts, places: Sequence[CitedSpan]) -> _Basis | None:
        """Return what a line cites, if that bears it out: what is not there, or too much of it, bears out nothing."""
        originals = [
            source
            for source in self._sources.zone
            if any(place.first <= source.seqs[0] <= place.last for place in places)
        ]
        # Who cites everything names nothing.
        if len(originals) > MOST_CITED or len(originals) == len(self._sources.zone) > MOST_NEIGHBOURS:
            return None
        by_earlier = [
            source
            for source in self._sources.earlier
            if any(place.first <= seq <= place.last for place in places for seq in source.seqs)
        ]
        chosen: list[ClaimSource] = [*originals]
        if by_earlier:
            chosen += self._needed(facts, originals, by_earlier)
        seqs = tuple(sorted({seq for source in chosen for seq in source.seqs}))
        if not seqs or len(seqs) > MOST_CITED:
            return None
        if _quoted(facts, originals):
            return _Basis(seqs, "verbatim")
        return _Basis(seqs, "values") if _bears(facts, chosen, self._sources.beside) else None

    def _needed(
        self, facts: LineFacts, originals: Sequence[ClaimSource], earlier: Sequence[ClaimSource]
    ) -> list[ClaimSource]:
        """Return the lines of the earlier summary that add to what the originals bear out, the best for each fact."""
        needed: list[ClaimSource] = []
        ranked = sorted(earlier, key=lambda source: -len(source.words & facts.words))
        for fact in facts.facts:
            if not any(source.has(fact) for source in (*originals, *needed)):
                needed += [source for source in ranked if source.has(fact)][:1]
        return needed or ([] if originals else ranked[:1])

    def _attributed(self, facts: LineFacts) -> _Basis | None:
        """Return the only stretch that bears a line out; of several that have its very words, the newest."""
        quoting = [source for source in (*self._sources.earlier, *self._sources.zone) if _quoted(facts, [source])]
        if quoting:
            return _Basis(quoting[-1].seqs, quoting[-1].support)
        wanted = [fact for fact in facts.facts if not self._sources.beside(fact)]
        share = _WORDS_WITH_FACTS if wanted else _WORDS_UNCITED
        if not wanted and len(facts.words) < _FEW_WORDS:
            return None
        by_earlier = [
            source
            for source in self._sources.earlier
            if all(map(source.has, wanted)) and _shares(facts, [source], share)
        ]
        stretches = self._stretches(facts, wanted, share)
        if len(stretches) + len({source.seqs for source in by_earlier}) != 1:
            return None
        seqs = by_earlier[0].seqs if by_earlier else tuple(self._sources.zone[place].seqs[0] for place in stretches[0])
        return _Basis(seqs, "values")

    def _stretches(self, facts: LineFacts, wanted: Sequence[str], share: float) -> list[range]:
        """Return the smallest stretches of the zone that bear a line out, those that touch each other as one."""
        zone = self._sources.zone
        where: list[list[int]] = []
        for fact in wanted:
            where.append(self._sources.places_with(fact))
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
                if _shares(facts, window, share):
                    borne.append(range(start, start + size))
            if borne:
                return _joined(borne)
        return []


def _joined(stretches: Sequence[range]) -> list[range]:
    joined: list[range] = []
    for stretch in stretches:
        if joined and stretch.start <= joined[-1].stop and stretch.stop - joined[-1].start <= MOST_CITED:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, stretch.stop))
        else:
            joined.append(stretch)
    return joined


def bears_out(source: ClaimSource, line: str) -> bool:
    """Tell whether a source has by itself what a line says."""
    return _bears(facts_of(line), [source], lambda _: False)


def _quoted(facts: LineFacts, sources: Sequence[ClaimSource]) -> bool:
    return bool(facts.pieces) and all(any(source.quotes(piece) for source in sources) for piece in facts.pieces)


def _bears(facts: LineFacts, sources: Sequence[ClaimSource], beside: Callable[[str], bool]) -> bool:
    """Tell whether sources bear a line out: something in it has to be theirs, and nothing in it nobody's."""
    standing = [any(source.has(fact) for source in sources) for fact in facts.facts]
    if not all(stands or beside(fact) for fact, stands in zip(facts.facts, standing, strict=True)):
        return False
    if any(standing):
        return _shares(facts, sources, _WORDS_WITH_FACTS)
    return _shares(facts, sources, _WORDS_ALONE) and bool(facts.words)


def _shares(facts: LineFacts, sources: Sequence[ClaimSource], share: float) -> bool:
    """Tell whether sources have a share of a line's words; of few words at least one."""
    common = len(facts.words & frozenset().union(*(source.words for source in sources)))
    if len(facts.words) < _FEW_WORDS:
        return common > 0 or not facts.words
    return common >= share * len(facts.words)
