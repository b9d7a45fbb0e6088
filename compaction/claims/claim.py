"""Claims: the lines of a summary with the originals that support them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

Support = Literal["verbatim", "values", "unsupported"]
"""Whether the sources contain the line verbatim, contain its values, names and most of its words, or none was found."""
MOST_CITED: Final = 12
"""Messages that one line may cite. A line with more has no usable source."""


_WRITTEN: Final = re.compile(
    r"claims: (\d+) cited, (\d+) re-attributed, (\d+) unsupported, (\d+) dropped(?:, (\d+) marked before are gone)?"
)


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """A line of a summary with the seqs of its originals, ascending. An unsupported line has none."""

    text: str
    seqs: tuple[int, ...] = ()
    support: Support = "unsupported"


class ClaimCounts(NamedTuple):
    """Numbers of a summary's lines by the way in which their sources were found."""

    cited: int = 0
    """Cited by the summarizer and confirmed."""
    reattributed: int = 0
    """Attributed to the only stretch that supports the line, which cited another or none."""
    unsupported: int = 0
    """Unsupported lines that the summary keeps."""
    dropped: int = 0
    """Unsupported lines that were removed."""
    gone: int = 0
    """Removed lines that the earlier summary had marked as unsupported."""

    def __str__(self) -> str:
        gone = f", {self.gone} marked before are gone" if self.gone else ""
        return (
            f"claims: {self.cited} cited, {self.reattributed} re-attributed, {self.unsupported} unsupported, "
            f"{self.dropped} dropped{gone}"
        )

    @classmethod
    def parse(cls, detail: str) -> Self | None:
        """Return the counts at the end of a step's detail, or None."""
        written = list(_WRITTEN.finditer(detail))
        return cls(*(int(number or 0) for number in written[-1].groups())) if written else None


class ProvedSummary(NamedTuple):
    """A summary without citations, with its claims and their counts."""

    text: str
    claims: tuple[Claim, ...]
    counts: ClaimCounts
    refusable: int = 0
    """Unsupported lines that do not come from an earlier summary without sources."""


def count_claims(claims: Sequence[Claim]) -> ClaimCounts:
    """Return the counts of claims whose sources are known by construction."""
    unsupported = sum(claim.support == "unsupported" for claim in claims)
    return ClaimCounts(cited=len(claims) - unsupported, unsupported=unsupported)
