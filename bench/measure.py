"""Measuring: what one side yields, interleaved rounds, and the ratio of two sides."""

from __future__ import annotations

import random
import statistics
import sys
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_order: Final = random.Random(1)  # noqa: S311 - only the order of the sides


class Sample(NamedTuple):
    """What one side of a comparison yielded in one round; `details` are further figures by name."""

    value: float
    details: Mapping[str, float] = {}


class Spread(NamedTuple):
    """The rounds of a figure, boiled down."""

    median: float
    low: float
    high: float


class Target(NamedTuple):
    """What a row is to reach: a bound on the ratio, or on the measured value itself."""

    bound: Literal[">=", "<="]
    value: float
    of: Literal["ratio", "measured"] = "ratio"
    reason: str = ""
    """Section of docs/performance.md that says why it is not met, where it is not."""

    def is_met(self, figure: float) -> bool:
        """Tell whether a figure is inside the bound."""
        return figure >= self.value if self.bound == ">=" else figure <= self.value


class Row(NamedTuple):
    """One line of the table: two sides measured in the same rounds."""

    name: str
    what: str
    measured: str
    reference: str
    unit: str
    samples: Sequence[tuple[Sample, Sample]]
    """Measured and reference, one pair a round."""
    target: Target | None = None

    @property
    def ratio(self) -> Spread:
        """Measured over reference, taken within each round."""
        return spread([measured.value / reference.value for measured, reference in self.samples])

    def side(self, index: Literal[0, 1]) -> Spread:
        """Return the values of one side: 0 is the measured one, 1 the reference."""
        return spread([pair[index].value for pair in self.samples])

    def details(self, index: Literal[0, 1]) -> dict[str, float]:
        """Return the median of every further figure of one side."""
        names = self.samples[0][index].details
        return {name: statistics.median(pair[index].details[name] for pair in self.samples) for name in names}

    @property
    def meets_target(self) -> bool | None:
        """Whether the median is inside the target; None without one."""
        if self.target is None:
            return None
        return self.target.is_met((self.ratio if self.target.of == "ratio" else self.side(0)).median)


def spread(values: Sequence[float]) -> Spread:
    """Return the median, the least and the greatest of some values."""
    return Spread(statistics.median(values), min(values), max(values))


def interleave(
    sides: Mapping[str, Callable[[], Sample]], rounds: int, *, warmed: Callable[[], None] | None = None
) -> dict[str, list[Sample]]:
    """Run every side once a round, in a new order each time.

    A round before the first warms up and counts nothing; `warmed` is called after it.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        names = list(sides)
        _order.shuffle(names)
        for name in names:
            sample = sides[name]()
            if number:
                samples[name].append(sample)
            progress(f"  {f'round {number}' if number else 'warm-up'}: {name} {sample.value:,.4g}")
        if not number and warmed is not None:
            warmed()
    return samples


def pair(samples: Mapping[str, Sequence[Sample]], measured: str, reference: str) -> list[tuple[Sample, Sample]]:
    """Return the samples of two sides, round by round."""
    return list(zip(samples[measured], samples[reference], strict=True))


def progress(line: str) -> None:
    """Tell on stderr what goes on."""
    print(line, file=sys.stderr, flush=True)
