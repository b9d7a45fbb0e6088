"""Coverage: what became of every original message that a snapshot accounts for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import chain
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Fate = Literal["kept", "truncated", "summarized", "dropped"]


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Originals `first..last` (seqs, both inclusive) with one fate; `run_id` brought it about, None = as stored."""

    first: int
    last: int
    fate: Fate
    run_id: str | None = None


Coverage = tuple[Span, ...]


def find_span(coverage: Sequence[Span], seq: int) -> Span | None:
    """Return the span that holds `seq`, or None if the snapshot does not account for it."""
    index = bisect_right(coverage, seq, key=lambda span: span.first) - 1
    return coverage[index] if index >= 0 and coverage[index].last >= seq else None


def extend(parent: Sequence[Span], seqs: Iterable[int], fates: Mapping[int, Fate], run_id: str) -> Coverage:
    """Return the coverage of a new snapshot.

    `parent` is the coverage it starts from, `seqs` the originals it accounts for beyond that, ascending; `fates` are
    the changes that the run `run_id` made, to either.
    """
    changed = sorted(fates)
    # What is before the first change stays as it is.
    begins = bisect_left(parent, changed[0], key=lambda span: span.last) if changed else len(parent)
    spans = list(parent[:begins])

    def add(first: int, last: int, fate: Fate, run: str | None) -> None:
        before = spans[-1] if spans else None
        if before is not None and before.fate == fate and before.last == first - 1 and before.run_id == run:
            spans[-1] = Span(before.first, last, fate, run)
        else:
            spans.append(Span(first, last, fate, run))

    for span in (*parent[begins:], *spans_of(seqs)):
        start = span.first
        for seq in changed[bisect_left(changed, span.first) : bisect_right(changed, span.last)]:
            if start < seq:
                add(start, seq - 1, span.fate, span.run_id)
            add(seq, seq, fates[seq], run_id)
            start = seq + 1
        if start <= span.last:
            add(start, span.last, span.fate, span.run_id)
    return tuple(spans)


def shown_seqs(coverage: Sequence[Span]) -> list[int]:
    """Return the originals that the snapshot still shows, whole or cut, ascending."""
    shown = [range(span.first, span.last + 1) for span in coverage if span.fate in {"kept", "truncated"}]
    return list(chain.from_iterable(shown))


def gone_spans(coverage: Sequence[Span], gone: Iterable[int]) -> list[Span]:
    """Return what a snapshot does not show any more and the seqs in `gone` as spans with gaps between, in order."""
    before = [span for span in coverage if span.fate in {"summarized", "dropped"}]
    spans: list[Span] = []
    for span in sorted([*before, *spans_of(gone)], key=lambda span: span.first):
        if spans and spans[-1].last == span.first - 1:
            spans[-1] = Span(spans[-1].first, span.last, "dropped")
        else:
            spans.append(Span(span.first, span.last, "dropped"))
    return spans


def spans_of(seqs: Iterable[int]) -> list[Span]:
    """Return ascending seqs as spans of what is kept."""
    spans: list[Span] = []
    first = last = None
    for seq in seqs:
        if last is None or seq != last + 1:
            if first is not None and last is not None:
                spans.append(Span(first, last, "kept"))
            first = seq
        last = seq
    if first is not None and last is not None:
        spans.append(Span(first, last, "kept"))
    return spans


def changes(parent: Sequence[Span], child: Sequence[Span]) -> list[tuple[int, int, Fate, Span]]:
    """Return (first, last, fate before, span after) where `child` differs; beyond `parent` all was kept."""
    changed: list[tuple[int, int, Fate, Span]] = []
    for span in child:
        for seq in range(span.first, span.last + 1):
            old = find_span(parent, seq)
            before: Fate = old.fate if old else "kept"
            if before == span.fate:
                continue
            if changed and changed[-1][1] == seq - 1 and changed[-1][2] == before and changed[-1][3] is span:
                changed[-1] = (changed[-1][0], seq, before, span)
            else:
                changed.append((seq, seq, before, span))
    return changed


def name_seqs(seqs: Iterable[int]) -> str:
    """Return seqs as people read them, "3-17, 20"."""
    spans = ((span.first, span.last) for span in spans_of(sorted(set(seqs))))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
