"""Coverage: what became of every original message that a snapshot accounts for."""

from __future__ import annotations

from bisect import bisect_right
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
    rows: list[tuple[int, Fate, str | None]] = []
    for span in parent:
        rows.extend((seq, span.fate, span.run_id) for seq in range(span.first, span.last + 1))
    rows.extend((seq, "kept", None) for seq in seqs)
    spans: list[Span] = []
    for seq, old_fate, old_run in rows:
        fate, run = (fates[seq], run_id) if seq in fates else (old_fate, old_run)
        last = spans[-1] if spans else None
        if last is not None and last.last == seq - 1 and last.fate == fate and last.run_id == run:
            spans[-1] = Span(last.first, seq, fate, run)
        else:
            spans.append(Span(seq, seq, fate, run))
    return tuple(spans)


def changes(parent: Sequence[Span], child: Sequence[Span]) -> list[tuple[int, int, Fate, Span]]:
    """Return (first, last, fate before, span after) where `child` differs; beyond `parent` all was kept."""
    found: list[tuple[int, int, Fate, Span]] = []
    for span in child:
        for seq in range(span.first, span.last + 1):
            old = find_span(parent, seq)
            before: Fate = old.fate if old else "kept"
            if before == span.fate:
                continue
            if found and found[-1][1] == seq - 1 and found[-1][2] == before and found[-1][3] is span:
                found[-1] = (found[-1][0], seq, before, span)
            else:
                found.append((seq, seq, before, span))
    return found
