"""One attempt at the run that commits what a message batch has answered, below the threshold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worker.batches.batched import NOTHING_DROPPED
from worker.runs.journal import Journal
from worker.runs.summarizing import Summarizing

if TYPE_CHECKING:
    from store.runs.runs import Lease
    from worker.runs.compactor import Compactor


class BatchedRun:
    """Puts the answers into their place, if what they were made from is still there; no model is asked."""

    def __init__(self, compactor: Compactor, lease: Lease) -> None:
        self._api = compactor.batches
        self._journal = Journal(compactor.database, lease)
        self._batched = Summarizing(compactor, lease, self._journal).batched

    def go(self) -> None:
        """Commit the answers, unless that has been done."""
        now = self._journal.read()
        batch = self._batched.open()
        if self._api is None or batch is None or batch.state != "ended" or now.material.pending_version:
            return self._journal.end()
        self._batched.use(now, batch, self._api)
        if (failure := self._batched.failure) is not None:
            return self._journal.end(state="failed", reason=NOTHING_DROPPED, error=str(failure))
        return self._journal.end()
