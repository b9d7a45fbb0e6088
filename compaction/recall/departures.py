"""Departures: which step had taken a message out of the context before it was asked back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from compaction.coverage import Coverage, find_span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Link(NamedTuple):
    """A snapshot on the way to the head."""

    version: int
    step: str
    coverage: Coverage


class Departure(NamedTuple):
    """How a message left the context: by a step of a run (None: whose row is gone), in a snapshot."""

    step: str
    run_id: str | None
    version: int


def departures(seqs: Iterable[int], chain: Sequence[Link]) -> dict[int, Departure]:
    """Return how each of `seqs` left the context, those that are in it as they came left out.

    `chain` are the snapshots that the head came from, oldest first. What left, came back by a restore and left again
    left the last time; what was cut first and summarized later left when it was cut.
    """
    left: dict[int, Departure] = {}
    for seq in seqs:
        for link in reversed(chain):
            span = find_span(link.coverage, seq)
            if span is None or span.fate == "kept":
                break
            left[seq] = Departure(link.step, span.run_id, link.version)
    return left
