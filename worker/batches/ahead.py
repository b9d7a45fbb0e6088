"""A summary that is asked for ahead of time: what it will cover, and whether that is still there when it comes."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from compaction.summary.staging import joined
from compaction.summary.zone import Zone, zone_start
from compaction.tokens import CHARS_PER_TOKEN, text_weight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.steps.stage import Stage
    from compaction.view import ViewMessage


def fingerprint(zone: Sequence[ViewMessage], previous: str | None) -> str:
    """Return the SHA-256 of which messages a summary covers and which earlier summary, in hexadecimal digits.

    Seqs say enough: stored messages never change, and a summary is made from them as they were stored.
    """
    content = [previous, *([message.seq, message.role] for message in zone)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def find_again(stage: Stage, messages: int, expected: str) -> Zone | None:
    """Return where the zone of that fingerprint is now, None if it is not there as it was or nothing follows it."""
    start = zone_start(stage.view)
    zone = Zone(start, start + messages)
    if zone.stop >= len(stage.view):
        return None
    same = fingerprint(stage.view[zone.start : zone.stop], stage.previous_summary) == expected
    return zone if same else None


def side_by_side(texts: Sequence[str], answer_tokens: int) -> tuple[str, int]:
    """Return as many texts of consecutive parts as a summary has room for, heading by heading, and their number."""
    limit = answer_tokens * CHARS_PER_TOKEN
    for count in range(len(texts), 1, -1):
        text = joined(texts[:count])
        if text_weight(text) <= limit:
            return text, count
    return texts[0], 1
