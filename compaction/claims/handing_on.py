"""What of an earlier summary the next one is made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compaction.claims.citations import left_over
from compaction.claims.proof import bears_out
from compaction.claims.sources import ClaimSource
from compaction.summary.zone import carried_over

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.claims.claim import Claim


def given_on(summary: str, claims: Sequence[Claim], *, marks: bool, unsourced: str | None = None) -> str:
    """Return a summary without citations as the next one is made from it; `marks` is whether lines may lack support.

    Whoever reads a line that nothing bore out takes it over: where there are to be none, it is left out, and a heading
    of nothing else with it. What comes from `unsourced`, a summary that named no sources, cannot have any, and stays.
    """
    lines = carried_over(summary).split("\n")
    unsupported = {claim.text for claim in claims if claim.support == "unsupported" and not marks}
    inherited = ClaimSource(unsourced or "", ())
    unsupported = {text for text in unsupported if not bears_out(inherited, text)}
    return "\n".join(left_over([None if line.strip() in unsupported else line for line in lines]))
