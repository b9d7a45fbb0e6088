"""Look-ahead recall of every strategy at every budget, over cuts through conversations."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.fidelity.recall import characters, cut, find, joined, wholes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.fidelity.recall import Cut, Message
    from bench.fidelity.sources import Source
    from bench.fidelity.strategies import Left, Strategy

BUDGETS: Final = (0.5, 0.25, 0.1)
"""Shares of the past's characters that the whole context may have."""
_LEAST_PAST: Final = 8
_MODEL_CALLS: Final = 8
"""Model calls at once."""


class Score(NamedTuple):
    """What one strategy keeps at one budget, summed over every cut of a source."""

    source: str
    strategy: str
    budget: float | None
    """None: the strategy heeds none."""
    cuts: int
    wanted: int
    kept: int
    bound: int
    characters: int
    past: int
    over: int
    """Cuts after which the context is larger than the budget, because what has to stay is."""
    wanted_within: int
    bound_within: int
    """The same as `wanted` and `bound`, over the cuts after which the context is within the budget."""
    failed: int
    """Cuts at which the summarizer gave up, and messages were dropped instead."""
    seconds: float

    @property
    def recall(self) -> float:
        """Share of the wanted values that the context has."""
        return self.kept / max(1, self.wanted)

    @property
    def bound_recall(self) -> float:
        """Share of the wanted values that the context has and says something about."""
        return self.bound / max(1, self.wanted)

    @property
    def bound_recall_within(self) -> float | None:
        """The same over the cuts after which the context is within the budget; None where it never is."""
        return self.bound_within / self.wanted_within if self.wanted_within else None

    @property
    def share_kept(self) -> float:
        """Characters of the contexts for each character of the pasts."""
        return self.characters / max(1, self.past)


def cuts_of(messages: Sequence[Message], count: int, *, in_pieces: bool = False) -> Iterator[Cut]:
    """Yield a conversation cut at `count` evenly spaced points, which are the same ones in every shape."""
    every = wholes(messages, in_pieces=in_pieces)
    for number in range(1, count + 1):
        at = max(_LEAST_PAST, len(every) * number // (count + 1))
        past, future = list(chain(*every[:at])), list(chain(*every[at:]))
        yield cut(past, future, in_pieces=in_pieces)


def score(source: Source, cuts: Sequence[Cut], strategy: Strategy, budget: float | None) -> Score:
    """Measure one strategy at one budget; `cuts` are those of every conversation of the source."""
    sizes = [characters(joined(at.past) if source.in_pieces else at.past) for at in cuts]

    def shorten(index: int) -> Left:
        return strategy.shorten(cuts[index].past, int(sizes[index] * (budget or 1)))

    started = time.perf_counter()
    if strategy.asks_model:
        with ThreadPoolExecutor(_MODEL_CALLS) as threads:
            left = list(threads.map(shorten, range(len(cuts))))
    else:
        left = [shorten(index) for index in range(len(cuts))]
    seconds = time.perf_counter() - started
    contexts = [joined(context) if source.in_pieces else context for context, _ in left]
    findings = [find(at, context) for at, context in zip(cuts, contexts, strict=True)]
    lengths = [characters(context) for context in contexts]
    within = [size <= int(past * (budget or 1)) for size, past in zip(lengths, sizes, strict=True)]
    return Score(
        source=source.name,
        strategy=strategy.name,
        budget=budget,
        cuts=len(cuts),
        wanted=sum(len(at.wanted) for at in cuts),
        kept=sum(len(one.kept) for one in findings),
        bound=sum(len(one.bound) for one in findings),
        characters=sum(lengths),
        past=sum(sizes),
        over=within.count(False),
        wanted_within=sum(len(at.wanted) for at, fits in zip(cuts, within, strict=True) if fits),
        bound_within=sum(len(one.bound) for one, fits in zip(findings, within, strict=True) if fits),
        failed=sum(one.failed is not None for one in left),
        seconds=seconds,
    )
