"""Pauses: snapshots that waited for one become the head, since that is free, and what is due in one is checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy.exc import SQLAlchemyError

from runtime.log import fault
from store.conversations import waiting

if TYPE_CHECKING:
    from worker.database import Database

log = structlog.get_logger()

LIMIT: Final = 1_000
"""Snapshots that one sweep takes on."""


def promote_cold(database: Database) -> int:
    """Make snapshots whose cache is cold the head, and have conversations checked whose is; return how many."""
    with database.transaction(None) as connection:
        cold = waiting.cold(connection, LIMIT)
    promoted = 0
    for conversation_id, tenant_id in cold:
        try:
            with database.transaction(tenant_id) as connection:
                outcome = waiting.promote(connection, tenant_id, conversation_id)
        except SQLAlchemyError as error:
            # One that cannot be promoted holds up no others; the next sweep tries it again.
            log.warning("snapshot.not_promoted", conversation_id=str(conversation_id), error=fault(error))
            continue
        promoted += outcome in {"promoted", "checked"}
        if outcome in {"promoted", "outdated"}:
            log.info("snapshot.waited", conversation_id=str(conversation_id), outcome=outcome)
    return promoted
