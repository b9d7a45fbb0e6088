"""Claims of an extract, whose lines know their places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compaction.claims.citations import makes_claim
from compaction.claims.claim import Claim
from compaction.extract.extractive import LATEST, previous_lines
from compaction.text.dates import is_day_alone

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compaction.claims.claim import Support


def claims_of_extract(
    text: str,
    placed: Sequence[tuple[int, ...]],
    seqs: Mapping[int, Sequence[int]],
    *,
    previous: str | None = None,
    earlier: Sequence[Claim] = (),
) -> tuple[Claim, ...]:
    """Return the claims of an extract: `placed` are the places of its lines, `seqs` the originals at each place.

    Lines of an earlier summary keep their sources from its claims `earlier`.
    """
    lines = [line for line in text.split("\n")[1:] if line != LATEST and not is_day_alone(line)]
    before = previous_lines(previous or "")
    known = {claim.text: claim for claim in earlier}
    claims: list[Claim] = []
    for line, places in zip(lines, placed, strict=False):
        if not makes_claim(line):
            continue
        carried = [known.get(before[place]) for place in places if place < 0]
        if carried:
            own = carried[0]
            claims.append(Claim(line.strip(), own.seqs, own.support) if own else Claim(line.strip()))
            continue
        rests_on = tuple(sorted({seq for place in places for seq in seqs.get(place, ())}))
        support: Support = "verbatim" if rests_on else "unsupported"
        claims.append(Claim(line.strip(), rests_on, support))
    return tuple(claims)
