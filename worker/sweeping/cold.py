"""Snapshots that waited for the prompt cache to go cold: they become the head in the pause, where that is free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy.exc import SQLAlchemyError

from store.conversations import waiting

if TYPE_CHECKING:
    from worker.database import Database

log = structlog.get_logger()

LIMIT: Final = 1_000
"""Snapshots that one sweep takes on."""


def promote_cold(database: Database) -> int:
    """Make snapshots whose cache is cold the head; return how many were."""
    with database.transaction(None) as connection:
        found = waiting.cold(connection, LIMIT)
    promoted = 0
    for conversation_id, tenant_id in found:
        try:
            with database.transaction(tenant_id) as connection:
                outcome = waiting.promote(connection, tenant_id, conversation_id)
        except SQLAlchemyError as error:
            # One that cannot be promoted holds up no others; the next sweep tries it again.
            log.warning("snapshot.not_promoted", conversation_id=str(conversation_id), error=type(error).__name__)
            continue
        database.mark()
        promoted += outcome == "promoted"
        if outcome != "waits":
            log.info("snapshot.waited", conversation_id=str(conversation_id), outcome=outcome)
    return promoted
