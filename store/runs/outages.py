"""Versions from which a summary can be made of what only extracts cover since the model could not be reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import and_, select

from compaction.steps.catalogue import STEPS
from store.tables import conversations, runs, snapshots

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from sqlalchemy import Connection

_REPLACED: Final = tuple(step.name for step in STEPS.values() if step.replaced_by_summary)

_s, _c, _r = snapshots.c, conversations.c, runs.c


def versions_before(connection: Connection, conversation_id: UUID, codes: Collection[str]) -> list[int]:
    """Return the versions that extracts took the place of, oldest first, when summaries failed for one of `codes`.

    From the head back to the last summary, or to the last extract whose summary failed for another reason.
    """
    columns = (_s.version, _s.parent_version, _s.step, _s.run_id)
    link = (
        select(*columns)
        .join(conversations, and_(_c.id == _s.conversation_id, _c.head_version == _s.version))
        .where(_c.id == conversation_id, _s.step.in_(_REPLACED))
        .cte("link", recursive=True)
    )
    link = link.union_all(
        select(*columns).where(
            _s.conversation_id == conversation_id, _s.version == link.c.parent_version, _s.step.in_(_REPLACED)
        )
    )
    query = select(link.c.parent_version, link.c.step, _r.error).join(runs, _r.id == link.c.run_id, isouter=True)
    versions: list[int] = []
    for parent, step, error in connection.execute(query.order_by(link.c.version.desc())):
        if STEPS[step].summarizer != "extract":
            continue
        if str(error or "").partition(":")[0] not in codes:
            break
        versions.append(parent or 0)
    return versions[::-1]
