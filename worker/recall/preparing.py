"""Preparing for recall what left the context, so that a search need not read it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from compaction.recall.passages import quote_messages, segments_of
from compaction.recall.segments import segments_worth_storing
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
        read_through: int | None = -1
        while read_through is not None:
            read_through = _portion(database, tenant_id, conversation_id, read_through)
    except Exception as error:  # noqa: BLE001 - whatever it is, the run that ended has ended well
        log.warning("recall.not_prepared", conversation_id=str(conversation_id), error=fault(error))


def _portion(database: Database, tenant_id: UUID, conversation_id: UUID, read_through: int) -> int | None:
    """Store the next segments; return the seq after which to go on, None at the end.

    `read_through` is where the portion before has ended, of which nothing may have been stored: pictures have no terms.
    """
    with database.transaction(tenant_id) as connection:
        place = originals.read_conversation(connection, tenant_id, conversation_id)
        through = segments.prepared_through(connection, conversation_id)
        after = max(through, read_through)
        if place is None or place.covers_through <= after:
            return None
        rows, is_cut = originals.read_following(connection, tenant_id, conversation_id, after, place.covers_through)
    made = segments_of(quote_messages(rows), after)
    # What has as many bytes that there is no room for more is not to be read again, however few messages it is.
    new = segments_worth_storing(made) or (made if is_cut else ())
    if not new:
        return rows[-1].seq if is_cut else None
    with database.transaction(tenant_id) as connection:
        segments.insert_segments(connection, tenant_id, conversation_id, through, new)
    return new[-1].seqs[-1]
