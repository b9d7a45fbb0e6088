"""Claims: the lines of a summary, each with the originals that it rests on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

Support = Literal["verbatim", "values", "unsupported"]
"""Word for word in its sources; its values, names and most of its words are; or no source was found for it."""
MOST_CITED: Final = 12
"""Messages that one line may rest on: whoever cites more has named no source."""


_WRITTEN: Final = re.compile(
    r"claims: (\d+) cited, (\d+) re-attributed, (\d+) unsupported, (\d+) dropped(?:, (\d+) marked before are gone)?"
)


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """A line of a summary, and the seqs of the originals that it rests on, ascending; none where it has no support."""

    text: str
    seqs: tuple[int, ...] = ()
    support: Support = "unsupported"


class ClaimCounts(NamedTuple):
    """How the lines of one summary came to their sources."""

    cited: int = 0
    """By the summarizer, and borne out."""
    reattributed: int = 0
    """To the one stretch of the conversation that bears them out: it had cited another, or none."""
    unsupported: int = 0
    """Still in the summary."""
    dropped: int = 0
    """Taken out of it."""
    gone: int = 0
    """Lines that the summary before it had marked as unsupported, where such lines are dropped now."""

    def __str__(self) -> str:
        gone = f", {self.gone} marked before are gone" if self.gone else ""
        return (
            f"claims: {self.cited} cited, {self.reattributed} re-attributed, {self.unsupported} unsupported, "
            f"{self.dropped} dropped{gone}"
        )

    @classmethod
    def read(cls, detail: str) -> Self | None:
        """Return the counts that a step's detail ends with, None for none."""
        written = list(_WRITTEN.finditer(detail))
        return cls(*(int(number or 0) for number in written[-1].groups())) if written else None


class Proved(NamedTuple):
    """A summary without references, and what was found of its lines."""

    text: str
    claims: tuple[Claim, ...]
    counts: ClaimCounts
    refusable: int = 0
    """Unsupported lines that do not come from an earlier summary which named no sources itself."""


def counted(claims: Sequence[Claim]) -> ClaimCounts:
    """Return the counts of claims whose sources are known by construction."""
    unsupported = sum(claim.support == "unsupported" for claim in claims)
    return ClaimCounts(cited=len(claims) - unsupported, unsupported=unsupported)
