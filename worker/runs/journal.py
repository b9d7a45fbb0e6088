"""The journal of an attempt: what it reads, what it commits, and every step it writes down.

Each of its calls is one short transaction.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import structlog
from sqlalchemy.exc import NoResultFound

from compaction.media.limits import NO_MEDIA
from compaction.originals import cut_in, with_originals, with_unplaced
from compaction.steps.ladder import BEFORE_SUMMARY, Result, Step, cut_threshold, growth_margin, over_by_fixed
from compaction.steps.runs import RunReason, RunState, StepState
from compaction.steps.snapshot import UncoveredSourceError
from compaction.steps.steps import detail_of
from compaction.view import WRITTEN
from runtime.fault_points import pause_for_test
from store.conversations import claims, conversations, messages, snapshots
from store.conversations.messages import Origins
from store.runs import outages, requested, runs, waiting_summaries
from worker.masking import masked_note
from worker.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from compaction.claims.claim import Claim
    from compaction.cost.swap import Bounds
    from compaction.policy import Policy
    from compaction.steps.snapshot import NewSnapshot
    from compaction.steps.stage import Stage
    from compaction.steps.steps import StepOutcome
    from compaction.view import View
    from store.conversations.snapshots import Material
    from store.runs.runs import Lease, StepRecord
    from store.tables import AnyRow
    from worker.database import Database
    from worker.runs.swapping import SwapVerdict

log = structlog.get_logger()

_VOID: Final = frozenset({RunReason.HEAD_MOVED, RunReason.WORKER_STOPPED, RunReason.LEASE_LOST})
"""Reasons of steps that say nothing about whether another try would do."""
_SUMMARIZING: Final = frozenset({Step.SUMMARY, Step.FALLBACK, Step.BACKSTOP})
_WAITING: Final = frozenset({RunReason.WAITS_FOR_TOOL_LOOP, RunReason.WAITS_UNTIL_IT_PAYS})
_AT_ONCE: Final = frozenset({RunReason.NOTHING_TO_CUT, RunReason.NOTHING_TO_PRUNE, RunReason.NOTHING_TO_SHORTEN})


class RunLostError(Exception):
    """The run is somebody else's now, or the conversation moved under it: nothing of this attempt may count."""


class Reading(NamedTuple):
    """The conversation at one moment: as it is stored, and as a step finds it."""

    material: Material
    stage: Stage


class SentFields(NamedTuple):
    """The conversation's model, system prompt and tools, each None where the chat product has not sent it."""

    model: str | None
    system: Any
    tools: Any


class Journal:
    """Reads and writes on behalf of one attempt at a run."""

    def __init__(self, database: Database, lease: Lease) -> None:
        self._lease = lease
        self._policy: Policy = lease.policy
        self._database = database
        self._transaction = database.transaction
        self._started = time.monotonic()
        self._seen: int | None = None
        self._has_written = False
        self._fixed_tokens = 0
        self._has_media = False
        self.verdict_of: Callable[[StepOutcome, Reading], SwapVerdict | None] = lambda _outcome, _reading: None
        """Says what becomes of what a step made; None where that is no question of price."""
        self.bounds: Bounds | None = None
        """In a pause, the thresholds that nothing may be held back over: what failed there was asked for by none."""
        self.results_through: int | None = None
        """Seq of the newest tool-result message that was checked."""

    def read(self, base_version: int | None = None) -> Reading:
        """Read the head, or an older version, and what came after it; raises RunLostError if it was erased."""
        try:
            with self._transaction(self._lease.tenant_id, one_moment=True) as connection:
                material = snapshots.load(
                    connection,
                    self._lease.tenant_id,
                    self._lease.conversation_id,
                    base_version=base_version,
                    dated=self._policy.recall_handles,
                )
        except NoResultFound:
            self.sent_fields()
            raise
        stage = material.stage(self._policy)
        self._started = time.monotonic()
        self._fixed_tokens = stage.fixed_input
        self._has_media = stage.media != NO_MEDIA
        if self._seen is None:
            self._seen = stage.working.last_seq
        return Reading(material, stage)

    def before_outage(self, codes: Collection[str]) -> list[int]:
        """Return the versions before extracts that an outage of the model made necessary, oldest first."""
        with self._transaction(self._lease.tenant_id) as connection:
            return outages.versions_before(connection, self._lease.conversation_id, codes)

    def sent_fields(self) -> SentFields:
        """Read what the chat product sends besides the messages."""
        with self._transaction(self._lease.tenant_id) as connection:
            row = conversations.get(connection, self._lease.tenant_id, self._lease.conversation_id)
        if row is None:
            raise RunLostError(RunReason.ERASED)
        return SentFields(row.model, row.system, row.tools)

    def originals(self, stage: Stage, zone: View) -> tuple[View, Origins]:
        """Return a zone as it came; see `read_originals`."""
        with self._transaction(self._lease.tenant_id) as connection:
            return read_originals(connection, self._lease.conversation_id, stage, zone)

    def claims_of_summary(self, summary: str) -> tuple[Claim, ...] | None:
        """Return what the lines of a summary that this conversation has had rest on; None where that is not known."""
        with self._transaction(self._lease.tenant_id) as connection:
            return claims.claims_of_summary(connection, self._lease.conversation_id, summary)

    def unsourced_summary(self) -> str | None:
        """Return the newest summary that named no sources, None where all did."""
        with self._transaction(self._lease.tenant_id) as connection:
            return claims.unsourced_summary(connection, self._lease.conversation_id)

    def record(self, outcome: StepOutcome, stage: Stage) -> StepRecord:
        """Return what there is to say of a step once it is made."""
        return runs.StepRecord(
            name=outcome.step,
            state=StepState.COMMITTED,
            tokens_before=stage.tokens,
            tokens_after=stage.estimate(outcome.view),
            messages_before=len(stage.view),
            messages_after=len(outcome.view),
            duration_ms=self._milliseconds(),
            detail=detail_of(outcome, stage),
            results_cut=outcome.results_cut,
            shared_tokens=stage.shared(outcome.view),
        )

    def timed(self, record: StepRecord) -> StepRecord:
        """Return a step with the time that it has taken so far."""
        return record._replace(duration_ms=self._milliseconds())

    def take(self, outcome: StepOutcome, reading: Reading, record: StepRecord | None = None) -> Result:
        """Commit what a step made, or write down why not."""
        record = record or self.record(outcome, reading.stage)
        if outcome.reason is not None:
            return self.skip(record, outcome.reason)
        verdict = self.verdict_of(outcome, reading)
        if verdict is not None:
            record = record._replace(detail="; ".join(filter(None, (record.detail, verdict.note))))
            if verdict.action == "not_yet":
                return self.skip(record, RunReason.NOT_WORTH_IT_YET)
        new = outcome.settle(reading.stage, str(self._lease.run_id))
        record = record._replace(detail="; ".join(filter(None, (record.detail, *masked_note(new.masked)))))
        METRICS.masked(new.masked)
        lifetime = verdict.lifetime if verdict is not None and verdict.action == "waits" else None
        return self.commit(reading.material, new, record, waits_for_cache=lifetime)

    def commit(
        self,
        material: Material,
        new: NewSnapshot,
        record: StepRecord,
        *,
        waits_for_cache: int | None = None,
    ) -> Result:
        """Write the snapshot and its step; a pending one has to wait for the end of a tool loop.

        A snapshot that holds text of messages that it does not cover is a failed step.

        Raises RunLostError if the commit comes too late.
        """
        recorded: list[StepRecord] = []

        def write(connection: Connection) -> snapshots.Outcome:
            written = runs.written_step(connection, self._lease, record.name, after_version=material.last_version)
            if written is not None:
                return snapshots.Outcome(written.snapshot_version, pending=written.reason in _WAITING)
            outcome = snapshots.commit(
                connection,
                self._lease,
                material,
                new,
                step=Step(record.name),
                summarizer=record.summarizer,
                policy=self._policy,
                waits_for_cache=waits_for_cache,
            )
            if outcome.version is not None:
                waits = RunReason.WAITS_UNTIL_IT_PAYS if outcome.until_it_pays else RunReason.WAITS_FOR_TOOL_LOOP
                reason = waits if outcome.pending else None
                step = record._replace(snapshot_version=outcome.version, reason=reason)
                recorded[:] = [self._add(connection, step)]
                pause_for_test("snapshot.written")
            return outcome

        try:
            outcome = self._database.insist(self._lease.tenant_id, write)
        except UncoveredSourceError as error:
            log.exception("snapshot.uncovered", step=record.name)
            return self.fail(record, RunReason.NOT_COVERED, str(error))
        if outcome.lost is not None:
            self.skip(record, outcome.lost)
            if outcome.lost == RunReason.HEAD_MOVED:
                # By an edit, or a restore. What was made from the old head is worth nothing.
                self.end()
            raise RunLostError(outcome.lost)
        pause_for_test("snapshot.committed")
        for step in recorded:
            METRICS.step_recorded(step)
        return "pending" if outcome.pending else "committed"

    def skip(self, record: StepRecord, reason: str) -> Literal["skipped"]:
        """Write a step down that changed nothing."""
        self._write(self._unchanged(record)._replace(state=StepState.SKIPPED, reason=reason))
        return "skipped"

    def fail(self, record: StepRecord, reason: str, error: str) -> Literal["failed"]:
        """Write a step down that failed."""
        self._write(self._unchanged(record)._replace(state=StepState.FAILED, reason=reason, error=error))
        return "failed"

    def end(
        self,
        *,
        state: RunState | None = None,
        reason: str | None = None,
        error: str | None = None,
        waits_from: int | None = None,
    ) -> None:
        """Close the run, set how far the conversation has to grow before the next try, and ask for another check.

        With `waits_from` its summary waits for another day's budget, to be made from that version.
        """
        with self._transaction(self._lease.tenant_id) as connection:
            steps = runs.steps_of(connection, [self._lease.run_id])
            done = any(step.state == StepState.COMMITTED for step in steps)
            # Steps of an attempt before, or before the run was handed over, say nothing of what there was to do now.
            own = steps if done or self._has_written else ()
            last = own[-1].reason if own else RunReason.UNDER_BUDGET
            is_overtaken = last == RunReason.HEAD_MOVED
            if last not in _WAITING and self._is_over_by_fixed(steps):
                last = RunReason.FIXED_TOKENS_OVER_THRESHOLD
            self._hold(connection, steps)
            conversations.mark_due(connection, self._lease.conversation_id)
            ended = state or (RunState.COMMITTED if done else RunState.SKIPPED)
            if ended is RunState.FAILED and any(step.snapshot_version is not None for step in steps):
                ended = RunState.DEGRADED
            if waits_from is not None:
                waiting_summaries.remember(connection, self._lease, waits_from)
            if not runs.end(connection, self._lease, ended, reason or last, error):
                raise RunLostError(RunReason.LEASE_LOST)
            if is_overtaken and self._lease.parent_version is not None:
                # Nothing else brings it about: no threshold asks for what an overflow left out.
                parent = self._lease.parent_version
                requested.summarize_again(connection, self._lease, self._policy, parent_version=parent)
        pause_for_test("run.ended")
        METRICS.run_ended(ended, reason or last)
        log.info("run.ended", state=ended, reason=reason or last, trigger=self._lease.trigger)

    def _is_over_by_fixed(self, steps: Sequence[AnyRow]) -> bool:
        """Tell whether a step was due that cannot get the input under its threshold, and never will."""
        over = over_by_fixed(self._fixed_tokens, self._policy) if self._lease.strategy is None else ()
        names = {step.name for step in steps}
        return ("compaction_threshold_tokens" in over and not names.isdisjoint(_SUMMARIZING)) or (
            "input_token_budget" in over and Step.TOOL_RESULTS in names
        )

    def _unchanged(self, record: StepRecord) -> StepRecord:
        return self.timed(record)._replace(tokens_after=record.tokens_before, messages_after=record.messages_before)

    def _write(self, record: StepRecord) -> None:
        with self._transaction(self._lease.tenant_id) as connection:
            written = self._add(connection, record)
        METRICS.step_recorded(written)

    def _add(self, connection: Connection, record: StepRecord) -> StepRecord:
        """Write a step down and return it as it was written."""
        runs.add_step(connection, self._lease, record)
        self._has_written = True
        return record

    def _milliseconds(self) -> int:
        return round((time.monotonic() - self._started) * 1000)

    def _hold(self, connection: Connection, steps: Sequence[AnyRow]) -> None:
        """Hold back what was tried, and what the counters promise although there is nothing to do."""
        if self._lease.strategy is not None or self._lease.base_version is not None:
            return  # It ran whatever the thresholds say, perhaps with another policy: it says nothing about checks.
        if any(step.reason in _WAITING for step in steps):
            return  # Nothing begins while it waits, and the counters will be others when it is over.
        policy = self._policy
        puts_off = any(step.reason == RunReason.NOT_WORTH_IT_YET for step in steps)

        def held(names: Collection[str], threshold: int, most: int) -> conversations.Hold | None:
            reasons = {step.reason for step in steps if step.name in names}
            if reasons and reasons <= _VOID:
                return None
            # With nothing to cut, the next tool-result message makes this one old at once.
            at_once = RunReason.NOTHING_TO_CUT in reasons and reasons <= _AT_ONCE
            # A file in the first message leaves with a summary, and what its zone lacks comes with the next turn.
            at_once = at_once or (self._has_media and reasons == {RunReason.ZONE_TOO_SMALL})
            return conversations.Hold(
                0 if at_once else growth_margin(threshold, policy),
                above=-1 if reasons else threshold,
                share=policy.tool_results_growth_ratio if names is BEFORE_SUMMARY and None in reasons else 0,
                most=most if most > 0 and None not in reasons else None,
            )

        conversations.hold(
            connection,
            self._lease.conversation_id,
            tool_results=held(BEFORE_SUMMARY, cut_threshold(policy), self.bounds.budget if self.bounds else 0),
            summary=held(_SUMMARIZING, policy.compaction_threshold_tokens, self.bounds.hard if self.bounds else 0),
            trim=policy.max_context_bytes // 10 if any(step.name == Step.TRIM for step in steps) else None,
            # What was put off is to be cut in the next pause, whatever has come.
            results_through=None if puts_off else self.results_through,
            media_through=self._seen,
            seen=self._seen,
        )


def read_originals(connection: Connection, conversation_id: UUID, stage: Stage, zone: View) -> tuple[View, Origins]:
    """Return a zone with its tool results as they came, also those without a call, and when and from whom it came."""
    seqs = [message.seq for message in zone if message.seq != WRITTEN]
    if not seqs:
        return zone, Origins()
    cut = cut_in(zone, stage.working.snapshot.coverage)
    whole = with_originals(zone, messages.contents(connection, conversation_id, cut) if cut else {})
    whole = with_unplaced(whole, stage.view, stage.working.unrepaired)
    return whole, messages.origins(connection, conversation_id, min(seqs), max(seqs))
