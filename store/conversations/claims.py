"""What the lines of earlier summaries rest on, where the head does not have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from store.conversations.snapshots import claims_of
from store.tables import snapshots

if TYPE_CHECKING:
    from uuid import UUID

    from compaction.claims.claim import Claim

_s = snapshots.c


def claims_of_summary(connection: Connection, conversation_id: UUID, summary: str) -> tuple[Claim, ...] | None:
    """Return what the lines of a summary rest on, by the newest snapshot that has it; None where that is not known."""
    own = (_s.conversation_id == conversation_id, _s.summary == summary)
    newest = select(_s.claims, _s.summary).where(*own).order_by(_s.version.desc()).limit(1)
    row = connection.execute(newest).one_or_none()
    return None if row is None else claims_of(row)


def unsourced_summary(connection: Connection, conversation_id: UUID) -> str | None:
    """Return the newest summary of which no claims are known, None for none."""
    own = (_s.conversation_id == conversation_id, _s.claims.is_(None), _s.summary.is_not(None))
    summary: str | None = connection.scalar(select(_s.summary).where(*own).order_by(_s.version.desc()).limit(1))
    return summary
