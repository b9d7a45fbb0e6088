"""Preparing for recall what left the context, so that a search need not read it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from compaction.recall.passages import quoted, segments_of
from compaction.recall.segments import closed
from runtime.log import fault
from store.recall import originals, segments

if TYPE_CHECKING:
    from uuid import UUID

    from worker.database import Database

log = structlog.get_logger()


def prepare(database: Database, tenant_id: UUID, conversation_id: UUID) -> None:
    """Store the terms of a conversation's messages up to where its snapshot reaches, portion by portion.

    What fails is logged and left to the next time: what is not prepared is searched all the same.
    """
    try:
        while _portion(database, tenant_id, conversation_id):
            pass
    except Exception as error:  # noqa: BLE001 - whatever it is, the run that ended has ended well
        log.warning("recall.not_prepared", conversation_id=str(conversation_id), error=fault(error))


def _portion(database: Database, tenant_id: UUID, conversation_id: UUID) -> bool:
    """Store the next segments; tell whether there were any."""
    with database.transaction(tenant_id) as connection:
        place = originals.place(connection, tenant_id, conversation_id)
        through = segments.prepared_through(connection, conversation_id)
        if place is None or place.covers_through <= through:
            return False
        rows = originals.following(connection, tenant_id, conversation_id, through, place.covers_through)
    if not rows:
        return False
    new = closed(segments_of(quoted(rows), through))
    if not new:
        return False
    with database.transaction(tenant_id) as connection:
        segments.store(connection, tenant_id, conversation_id, through, new)
    return True
