"""Departures: the compaction step that removed each recalled message from the context."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from compaction.coverage import Coverage, find_span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Link(NamedTuple):
    """One snapshot in the chain that led to the head."""

    version: int
    step: str
    coverage: Coverage


class Departure(NamedTuple):
    """The step, run and snapshot that removed a message. `run_id` is None if the run's row was deleted."""

    step: str
    run_id: str | None
    version: int


def find_departures(seqs: Iterable[int], chain: Sequence[Link]) -> dict[int, Departure]:
    """Return how each of `seqs` left the context. Messages that are still in it are omitted.

    `chain` has the snapshots that led to the head, oldest first. For a message that left, was restored and left again,
    the last departure counts. For one that was cut first and summarized later, the cut counts.
    """
    left: dict[int, Departure] = {}
    for seq in seqs:
        for link in reversed(chain):
            span = find_span(link.coverage, seq)
            if span is None or span.fate == "kept":
                break
            left[seq] = Departure(link.step, span.run_id, link.version)
    return left
