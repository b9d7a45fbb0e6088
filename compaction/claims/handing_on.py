"""The form of an earlier summary in the next summary's input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compaction.claims.citations import remove_empty_headings
from compaction.claims.proof import supports
from compaction.claims.sources import ClaimSource
from compaction.summary.zone import carried_over

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.claims.claim import Claim


def prepare_previous(summary: str, claims: Sequence[Claim], *, marks: bool, unsourced: str | None = None) -> str:
    """Return a summary without citations as input of the next one.

    `marks` is whether unsupported lines are allowed. If not, they are removed with their empty headings, because a
    model would copy them. Lines from `unsourced`, a summary without sources, stay.
    """
    lines = carried_over(summary).split("\n")
    unsupported = {claim.text for claim in claims if claim.support == "unsupported" and not marks}
    inherited = ClaimSource(unsourced or "", ())
    unsupported = {text for text in unsupported if not supports(inherited, text)}
    return "\n".join(remove_empty_headings([None if line.strip() in unsupported else line for line in lines]))
