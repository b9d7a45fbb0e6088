"""Stored claims refer to their line by number, so that only the summary itself contains its text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from compaction.claims.citations import line_text
from compaction.claims.claim import Claim, Support

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class PackedClaim(msgspec.Struct, frozen=True, array_like=True):
    """The sources of line `line` of a summary, from 0."""

    line: int
    seqs: tuple[int, ...]
    support: Support


def pack_claims(claims: Sequence[Claim], summary: str) -> list[list[Any]]:
    """Return claims by the number of their line. Claims whose line was removed are omitted."""
    lines = [line_text(line) for line in summary.split("\n")]
    rows: list[list[Any]] = []
    at = 0
    for claim in claims:
        place = next((place for place in range(at, len(lines)) if lines[place] == claim.text), None)
        if place is not None:
            rows.append([place, list(claim.seqs), claim.support])
            at = place + 1
    return rows


def unpack_claims(rows: Iterable[Any], summary: str) -> tuple[Claim, ...]:
    """Return the claims of a summary from their stored form."""
    lines = summary.split("\n")
    claims = (msgspec.convert(row, PackedClaim) for row in rows)
    return tuple(
        Claim(line_text(lines[claim.line]), claim.seqs, claim.support) for claim in claims if claim.line < len(lines)
    )
