"""Checks: which of many conversations need a compaction now."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import structlog
from sqlalchemy.exc import DBAPIError

from compaction.overrides import InForce, in_force
from compaction.steps.ladder import decide
from compaction.steps.runs import RunKind, RunTrigger
from runtime.log import fault
from store.conversations import conversations, snapshots, waiting
from store.runs import runs
from worker.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from uuid import UUID

    from sqlalchemy import Connection

    from compaction.cost.pauses import Pause
    from compaction.policy import Policy
    from store.conversations.conversations import CheckState
    from store.runs.runs import Lease, LeaseHolder
    from worker.database import Database
    from worker.runs.pausing import Pausing

log = structlog.get_logger()
_decode = msgspec.json.Decoder(dict[str, Any]).decode

POLICIES: Final = 4_096
"""Policies in force that are remembered by their texts: parsing one costs more than all else that a check decides."""
PASSES: Final = 10
"""Times a batch is read again for conversations that were appended to meanwhile; the sweep has the rest."""
OF_ONE: Final = ("22", "55P03")
"""Beginnings of SQLSTATEs that are one conversation's fault: somebody has it locked, or it cannot be counted."""


class _Known(NamedTuple):
    """What is known of a policy by its texts: what is in force, and what is due under it in a pause."""

    in_force: InForce
    pause: Pause | None


class _Look(NamedTuple):
    """What a batch of conversations came to; `left` are those to be looked at again."""

    idle: int
    due: Sequence[CheckState]
    left: list[UUID]


class Checker:
    """Decides from counters alone, for conversations of any tenant, and begins the runs that are due.

    `holder` is whoever claims them at that moment. With `pausing` conversations are compacted in a
    pause.
    """

    def __init__(
        self,
        database: Database,
        defaults: Mapping[str, Any],
        *,
        holder: Callable[[], LeaseHolder],
        lease_seconds: float,
        pausing: Pausing | None = None,
    ) -> None:
        self._database = database
        self._defaults = defaults
        self._policies = lru_cache(POLICIES)(self._parsed)
        self._holder = holder
        self._lease_seconds = lease_seconds
        self._pausing = pausing

    def check(self, conversation_ids: Iterable[UUID], execute: Callable[[Lease], None]) -> None:
        """Check conversations and carry out what is due, until none of them has a check due."""
        waiting = list(dict.fromkeys(conversation_ids))
        for number in range(PASSES):
            if not waiting:
                return
            try:
                # First without a lock, so that nobody's append waits for a check; where one came in between, with it.
                look = self._look(waiting, lock=number > 0)
            except DBAPIError as error:
                self._one_by_one(waiting, error, execute)
                return
            METRICS.checked("idle", look.idle)
            for state in look.due:
                if (lease := self._began(state)) is not None:
                    METRICS.checked("begun")
                    execute(lease)
            waiting = look.left

    def _look(self, waiting: Sequence[UUID], *, lock: bool) -> _Look:
        """Read conversations that have a check due, and take the marks off those with nothing to do."""
        place = {conversation_id: number for number, conversation_id in enumerate(waiting)}
        with self._reading(lock=lock) as connection:
            states = conversations.check_states(connection, waiting, lock=lock)
            # In the order that they were given in, which is fair; the database's is that of ids or of pages.
            states.sort(key=lambda state: place[state.conversation_id])
            idle, busy, near = self._split(states)
            in_pause = self._in_pause(connection, near) if near else {}
            if in_pause:
                idle = [state for state in idle if state.conversation_id not in in_pause]
            done = conversations.clear_checks(connection, idle) if idle else set()
        left = [state.conversation_id for state in states if state.conversation_id not in done]
        return _Look(len(idle), (*busy, *in_pause.values()), left)

    def _one_by_one(self, waiting: Sequence[UUID], error: DBAPIError, execute: Callable[[Lease], None]) -> None:
        """Check each by itself, so that the one whose fault an error is keeps no other from its check."""
        if len(waiting) == 1:
            _leave(waiting[0], error)
            return
        _raise_unless_of_one(error)
        for conversation_id in waiting:
            self.check([conversation_id], execute)

    def _reading(self, *, lock: bool) -> AbstractContextManager[Connection]:
        """Open a transaction only for what has to happen at once: it costs as much as the two statements in it."""
        if lock:
            return self._database.transaction(None)
        return self._database.statements()

    def _in_force(self, state: CheckState) -> InForce:
        return self._known(state).in_force

    def _known(self, state: CheckState) -> _Known:
        return self._policies(state.tenant_policy, state.policy, state.model, state.requested_output)

    def _parsed(self, tenant_policy: str, policy: str, model: str | None, requested_output: int | None) -> _Known:
        holds = in_force(self._defaults, _decode(tenant_policy), _decode(policy), model=model)
        holds = holds._replace(policy=holds.policy.reserving(requested_output))
        return _Known(holds, None if self._pausing is None else self._pausing.pause_of(holds.policy, model))

    def _split(self, states: Iterable[CheckState]) -> tuple[list[CheckState], list[CheckState], list[CheckState]]:
        """Part those with nothing to do from the others, and tell which of them would have something in a pause."""
        idle: list[CheckState] = []
        busy: list[CheckState] = []
        near: list[CheckState] = []
        for state in states:
            holds, pause = self._known(state)
            if not _is_idle(state, holds.policy):
                busy.append(state)
                continue
            idle.append(state)
            if pause is not None and _is_near(state, pause):
                near.append(state)
        return idle, busy, near

    def _in_pause(self, connection: Connection, near: Sequence[CheckState]) -> Mapping[UUID, CheckState]:
        """Return those that are compacted now, their cache being gone; the next pause of others is waited for."""
        lifetimes = {state.conversation_id: self._in_force(state).policy.prompt_cache_seconds for state in near}
        cold = waiting.watch(connection, lifetimes)
        return {state.conversation_id: state for state in near if state.conversation_id in cold}

    def _began(self, state: CheckState) -> Lease | None:
        try:
            return self._begin(state)
        except DBAPIError as error:
            _leave(state.conversation_id, error)
            return None

    def _begin(self, state: CheckState) -> Lease | None:
        policy = self._in_force(state).policy
        if _is_miscounted(state, policy):
            with self._database.transaction(state.tenant_id) as connection:
                conversations.recount(connection, state.conversation_id, policy.max_tool_result_chars)
            METRICS.checked("recounted")
            return None
        if state.pending_version is not None:
            self._promote(state)
            METRICS.checked("promoted")
            return None
        with self._database.transaction(state.tenant_id) as connection:
            # Since the batch was read a run may have come and gone; from here on nothing changes any more.
            now = conversations.check_states(connection, [state.conversation_id], lock=True)
            trigger = self._trigger(connection, now[0]) if now else None
            if trigger is None:
                return None
            policy, _, ignored = self._in_force(now[0])
            if ignored:
                log.warning("policy.ignored", conversation_id=str(state.conversation_id), reasons=ignored)
            return runs.start(
                connection,
                state.tenant_id,
                state.conversation_id,
                kind=RunKind.LADDER,
                trigger=trigger,
                policy=policy,
                holder=self._holder(),
                lease_seconds=self._lease_seconds,
            )

    def _trigger(self, connection: Connection, state: CheckState) -> RunTrigger | None:
        """Return what brings a run about now; None if there is none to begin, or a snapshot was ready."""
        if state.pending_version is not None or _is_miscounted(state, self._in_force(state).policy):
            return None
        holds, pause = self._known(state)
        if _is_idle(state, holds.policy):
            is_near = pause is not None and _is_near(state, pause)
            return RunTrigger.PAUSE if is_near and self._in_pause(connection, [state]) else None
        return None if self._ends_wait(connection, state) else RunTrigger.CHECK

    def _ends_wait(self, connection: Connection, state: CheckState) -> bool:
        """Make a snapshot the head that waits for a pause, now that a threshold is passed; another check follows."""
        outcome = waiting.promote(connection, state.tenant_id, state.conversation_id, is_at_limit=True)
        if outcome == "promoted":
            log.info("snapshot.waited", conversation_id=str(state.conversation_id), outcome="limit")
        return outcome == "promoted"

    def _promote(self, state: CheckState) -> None:
        """Make a pending snapshot the head although its tool loop is still running: the window is filling up."""
        with self._database.transaction(state.tenant_id) as connection:
            promoted = snapshots.promote_pending(connection, state.tenant_id, state.conversation_id)
        if promoted:
            log.warning("snapshot.promoted_in_loop", conversation_id=str(state.conversation_id), version=promoted)


def _leave(conversation_id: UUID, error: DBAPIError) -> None:
    """Leave a conversation to the sweep, as its check stays due; raise what is not its own fault."""
    _raise_unless_of_one(error)
    log.warning("check.left", conversation_id=str(conversation_id), error=fault(error))


def _raise_unless_of_one(error: DBAPIError) -> None:
    if not (getattr(error.orig, "sqlstate", None) or "").startswith(OF_ONE):
        raise error


def _is_idle(state: CheckState, policy: Policy) -> bool:
    """Tell whether nothing is to be done: an active run asks for another check when it ends."""
    if _is_miscounted(state, policy):
        return False
    if state.pending_version is not None:
        return state.load.input_tokens < policy.pending_limit_tokens
    return state.has_active_run or not decide(state.load, policy)


def _is_near(state: CheckState, pause: Pause) -> bool:
    """Tell whether a conversation with nothing to do would have something to do in a pause."""
    tokens = state.estimated if state.measured is None else state.measured
    if tokens <= pause.least_tokens or state.has_active_run or state.pending_version is not None:
        return False
    return pause.is_due(state.load)


def _is_miscounted(state: CheckState, policy: Policy) -> bool:
    """Tell whether the context was counted with another cap on tool results than the one in force."""
    return state.counted_cap is not None and state.counted_cap != policy.max_tool_result_chars
