"""Rewriting a request: the head stands in the place of the rows that it covers, within the model's limits."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog

from compaction.pins.serving import reading_bytes
from compaction.shapes.inner import ShapeError
from gateway.contexts import shorten
from gateway.conversations.meaning import UNREADABLE
from gateway.conversations.put_back import put_back
from gateway.conversations.recognition import new_place
from gateway.request.values import PreparedRequest
from runtime.threads import run_aside

if TYPE_CHECKING:
    from compaction.media.limits import MediaLimits
    from gateway.contexts import CompactedRequest
    from gateway.conversations.histories import ResentHistory
    from gateway.conversations.recognition import RecognizedPlace
    from gateway.request.values import ParsedRequest, PlacedRequest

log = structlog.get_logger()


async def rewrite(placed: PlacedRequest) -> PreparedRequest:
    """Return a request with the head of its conversation; as it came where no head can stand in it."""
    learned, history, place = placed.learned, placed.history, placed.learned.place
    sendable = whole = history.repair_rows()
    shorter = None
    try:
        if place.recalls:
            whole = sendable._replace(rows=put_back(history.shape, sendable.rows, place.recalls, place.removed))
        shorter = await _shorten(whole, place, placed.limits, len(placed.body))
    except (ShapeError, *UNREADABLE) as error:
        _note_unread(error, place)
    if shorter is not None:
        learned = learned._replace(
            outcome="compacted", saved_tokens=shorter.saved_tokens, version=shorter.version, rules=shorter.rules
        )
        return PreparedRequest(
            shorter.body, "compacted", learned, placed, repaired=history.repairs, opaque=history.opaque
        )
    body = placed.body
    if place.recalls and not all(whole.rows):
        # What the head stands for was not read: the client's own rows are a history too.
        whole = sendable
    if placed.body_without_tool is not None or place.recalls:
        body = whole.with_rows(whole.rows)
    return PreparedRequest(body, "unchanged", learned, placed, repaired=history.repairs, opaque=history.opaque)


async def leave_out_media(parsed: ParsedRequest, limits: MediaLimits) -> bytes:
    """Return the body of a request whose conversation is unknown, within the model's limits on media."""
    try:
        shorter = await _shorten(parsed.history.repair_rows(), new_place(), limits, len(parsed.body))
    except (ShapeError, *UNREADABLE) as error:
        _note_unread(error, None)
        return parsed.body
    return parsed.body if shorter is None else shorter.body


async def _shorten(
    history: ResentHistory, place: RecognizedPlace, limits: MediaLimits, size: int
) -> CompactedRequest | None:
    if place.head is not None:
        size += reading_bytes((rule.text for rule in place.rules), size)
    return await run_aside(size, partial(shorten, history, place, limits))


def _note_unread(error: Exception, place: RecognizedPlace | None) -> None:
    # What this service cannot read the provider may.
    log.info("gateway.not_read", error=str(error), conversation=str(place.conversation_id) if place else None)
