"""After an outage of the model: what extracts stand for is summarized from its originals, once and within bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from compaction.steps import steps
from compaction.steps.snapshot import UNREAD
from compaction.tokens import CHARS_PER_TOKEN
from compaction.view import view_tokens
from worker.summarizers.breaker import OUTAGE

if TYPE_CHECKING:
    from compaction.policy import Policy
    from worker.runs.journal import Journal, Reading

MOST_PARTS: Final = 10
"""Requests' worth of transcript (`summary_input_max_chars`) that are read again for one summary."""


def reading_before(journal: Journal, policy: Policy) -> Reading | None:
    """Return the conversation as it was before extracts stood in for summaries that an outage prevented.

    The oldest such version whose originals are not too much to read; None where there is none, or no such extract.
    """
    for version in journal.before_outage(OUTAGE):
        found = journal.read(version)
        zone = steps.find_zone(found.stage, policy)
        if isinstance(zone, str) or any(original.content == UNREAD for original in found.material.tail):
            continue
        chars = view_tokens(found.stage.view[zone.start : zone.stop]) * CHARS_PER_TOKEN
        if chars <= MOST_PARTS * policy.summary_input_max_chars:
            return found
    return None
