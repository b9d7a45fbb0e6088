"""Commits that were acknowledged and are gone: a standby was promoted without them, or a backup restored.

A heartbeat is a commit as a turn is one, and where it is gone, so is all that was committed after it. Nothing more has
to be asked of a server for that, whichever it is, and requests have no part in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from worker.metrics import METRICS

if TYPE_CHECKING:
    from datetime import datetime

    from store.operations.processes import Beat

log = structlog.get_logger()


class Losses:
    """Compares what each heartbeat meets with what the one before was told is stored."""

    def __init__(self) -> None:
        self._stored_at: datetime | None = None
        """When the last heartbeat was that the database has acknowledged, by its clock."""

    def note(self, beat: Beat) -> None:
        """Note a heartbeat that was acknowledged; say so where it met an older one than the last of these.

        A row that is gone may be one that a restored backup is too old for, and then every other is older as well.
        Housekeeping takes the oldest off, and the younger ones stay.
        """
        stored_at, self._stored_at = self._stored_at, beat.at
        if stored_at is None or beat.before is None or beat.before >= stored_at:
            return
        METRICS.lost_commits()
        log.error(
            "commits.lost",
            since=beat.before.isoformat(),
            through=stored_at.isoformat(),
            seconds=round((stored_at - beat.before).total_seconds(), 3),
        )
