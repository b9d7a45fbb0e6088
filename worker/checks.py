"""Checks: which of many conversations need a compaction now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from compaction.ladder import decide
from compaction.policy import merge
from store import conversations, runs, snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any
    from uuid import UUID

    from compaction.policy import Policy
    from store.conversations import CheckState
    from store.runs import Lease
    from worker.database import Database

log = structlog.get_logger()

PASSES: Final = 10
"""Times a batch is read again for conversations that were appended to meanwhile; the sweeper has the rest."""


class Checker:
    """Decides from counters alone, for conversations of any tenant, and begins the runs that are due."""

    def __init__(self, database: Database, defaults: Mapping[str, Any], *, worker: str, lease_seconds: float) -> None:
        self._database = database
        self._defaults = defaults
        self._worker = worker
        self._lease_seconds = lease_seconds

    def check(self, conversation_ids: Iterable[UUID], execute: Callable[[Lease], None]) -> None:
        """Check conversations and carry out what is due, until none of them has a check due."""
        waiting = list(dict.fromkeys(conversation_ids))
        for _ in range(PASSES):
            if not waiting:
                return
            with self._database.transaction(None) as connection:
                states = conversations.check_states(connection, waiting)
            idle: list[CheckState] = []
            for state in states:
                lease = self._begin(state)
                if lease is None:
                    idle.append(state)
                else:
                    execute(lease)
            waiting = self._clear(idle, states)

    def _begin(self, state: CheckState) -> Lease | None:
        policy = merge(self._defaults, state.tenant_policy, state.policy)
        if state.pending_version is not None:
            if state.load.input_tokens >= policy.trim_threshold_tokens:
                self._promote(state)
            return None
        if state.has_active_run or not decide(state.load, policy):
            return None
        return self._start(state, policy)

    def _start(self, state: CheckState, policy: Policy) -> Lease | None:
        with self._database.transaction(state.tenant_id) as connection:
            return runs.start(
                connection,
                state.tenant_id,
                state.conversation_id,
                trigger="check",
                policy=policy,
                worker=self._worker,
                lease_seconds=self._lease_seconds,
            )

    def _promote(self, state: CheckState) -> None:
        """Make a pending snapshot the head although its tool loop is still running: the window is filling up."""
        with self._database.transaction(state.tenant_id) as connection:
            promoted = snapshots.promote_pending(connection, state.tenant_id, state.conversation_id)
        if promoted:
            log.warning("snapshot.promoted_in_loop", conversation_id=str(state.conversation_id), version=promoted)

    def _clear(self, idle: Sequence[CheckState], states: Sequence[CheckState]) -> list[UUID]:
        """Take the mark off idle conversations; return those that have to be looked at again."""
        cleared: set[UUID] = set()
        if idle:
            with self._database.transaction(None) as connection:
                cleared = conversations.clear_checks(connection, idle)
        return [state.conversation_id for state in states if state.conversation_id not in cleared]
