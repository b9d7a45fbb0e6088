"""What recall is to reach, and the figure beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bench.measure import Target

if TYPE_CHECKING:
    from collections.abc import Sequence

Row = dict[str, Any]

EVIDENCE: Final = {
    "talk-locomo": {2_000: 0.86, 4_000: 0.91},
    "talk-long": {2_000: 0.92, 4_000: 0.97},
}
"""Share of the evidence by file and tokens, on conversations that the ranking was not tuned on."""
LATER: Final = 0.95
"""Share of the values that are used later in the context and one recall together."""
LATER_TOKENS: Final = 2_000
"""Tokens of that recall: what a model is given that does not say how much it wants."""
MILLISECONDS: Final = {1_000: 20.0, 10_000: 120.0}
"""Median time of a recall by words, by messages of the conversation."""
STORED: Final = 1.5
"""Bytes stored for a byte of text."""

TUNED_ON: Final = frozenset({"conv-26", "conv-42", "conv-43", "talk-40"})
"""Conversations by which the ranking was tuned: their figures say less than those of the others."""


class Goal(NamedTuple):
    """A bound and what was measured."""

    target: Target
    measured: float

    def columns(self) -> Row:
        """Return the columns of a table."""
        sign = "≥" if self.target.bound == ">=" else "≤"
        reached = "yes" if self.target.is_met(self.measured) else "no"
        return {"goal": f"{sign} {self.target.value:g}", "reached": reached}


def least(measured: float, bound: float | None) -> Row:
    """Return the columns of a figure that is to be at least `bound`; None asks for nothing."""
    return _NONE if bound is None else Goal(Target(">=", bound, of="measured"), measured).columns()


def most(measured: float, bound: float | None) -> Row:
    """Return the columns of a figure that is to be at most `bound`; None asks for nothing."""
    return _NONE if bound is None else Goal(Target("<=", bound, of="measured"), measured).columns()


_NONE: Final[Row] = {"goal": "", "reached": ""}


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Print rows that have the same columns."""
    print(title)
    names = list(rows[0])
    table = [names, *([str(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[at]) for line in table) for at in range(len(names))]
    for line in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    print()
