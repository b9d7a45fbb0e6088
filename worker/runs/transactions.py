"""The short transactions of one attempt at a run: what it reads, what it commits, every step that it writes down.

No transaction is open while a step is computed or a model is asked.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import structlog
from sqlalchemy.exc import NoResultFound

from compaction.media.limits import NO_MEDIA
from compaction.originals import cut_in, with_originals, with_unplaced
from compaction.steps.holds import WAITING, holds_after, is_over_by_fixed
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
    from collections.abc import Collection, Sequence

    from sqlalchemy import Connection

    from compaction.claims.claim import Claim
    from compaction.cost.swap import Bounds
    from compaction.steps.catalogue import Result, Step
    from compaction.steps.snapshot import NewSnapshot
    from compaction.steps.stage import Stage
    from compaction.steps.steps import StepOutcome
    from compaction.view import View
    from store.conversations.snapshots import Material
    from store.runs.runs import Lease, StepRecord
    from store.tables import AnyRow
    from worker.database import Database
    from worker.runs.swapping import SwapVerdict
    from worker.summarizers.base import SummaryError

log = structlog.get_logger()


class RunLostError(Exception):
    """Another worker has the run, or the conversation moved: nothing of this attempt may count."""


class HeadMovedError(RunLostError):
    """The head moved, by an edit or a restore: what was made from the old one is worth nothing, and the run ends."""


class Reading(NamedTuple):
    """The conversation at one moment: as it is stored, and as a step finds it."""

    material: Material
    stage: Stage


class SentFields(NamedTuple):
    """The conversation's model, system prompt and tools, each None if the chat product has not sent it."""

    model: str | None
    system: Any
    tools: Any


class MadeStep(NamedTuple):
    """What a step made of a reading, and its record; not committed yet."""

    reading: Reading
    outcome: StepOutcome
    record: StepRecord
    failure: SummaryError | None = None
    """Why it made nothing."""


class RunTransactions:
    """Reads and writes on behalf of one attempt at a run."""

    def __init__(self, database: Database, lease: Lease) -> None:
        self._lease = lease
        self._database = database
        self._transaction = database.transaction
        self._started = time.monotonic()
        self._seen: int | None = None
        self._has_written = False
        self._fixed_tokens = 0
        self._has_media = False

    def read(self, base_version: int | None = None) -> Reading:
        """Read the head, or an older version, and what came after it. Raises RunLostError if it was erased."""
        try:
            with self._transaction(self._lease.tenant_id, one_moment=True) as connection:
                material = snapshots.load(
                    connection,
                    self._lease.tenant_id,
                    self._lease.conversation_id,
                    base_version=base_version,
                    dated=self._lease.policy.recall_handles,
                )
        except NoResultFound:
            self.read_sent_fields()
            raise
        stage = material.stage(self._lease.policy)
        self._started = time.monotonic()
        self._fixed_tokens = stage.fixed_input
        self._has_media = stage.media != NO_MEDIA
        if self._seen is None:
            self._seen = stage.working.last_seq
        return Reading(material, stage)

    def versions_before_outage(self, codes: Collection[str]) -> list[int]:
        """Return the versions before extracts that an outage of the model made necessary, oldest first."""
        with self._transaction(self._lease.tenant_id) as connection:
            return outages.versions_before(connection, self._lease.conversation_id, codes)

    def read_sent_fields(self) -> SentFields:
        """Read what the chat product sends besides the messages. Raises RunLostError if it was erased."""
        with self._transaction(self._lease.tenant_id) as connection:
            row = conversations.get(connection, self._lease.tenant_id, self._lease.conversation_id)
        if row is None:
            raise RunLostError(RunReason.ERASED)
        return SentFields(row.model, row.system, row.tools)

    def read_originals(self, stage: Stage, zone: View) -> tuple[View, Origins]:
        """Return a zone with its tool results as they came, also those without a call, and its times and authors."""
        seqs = [message.seq for message in zone if message.seq != WRITTEN]
        if not seqs:
            return zone, Origins()
        conversation_id, cut = self._lease.conversation_id, cut_in(zone, stage.working.snapshot.coverage)
        with self._transaction(self._lease.tenant_id) as connection:
            contents = messages.contents(connection, conversation_id, cut) if cut else {}
            origins = messages.origins(connection, conversation_id, min(seqs), max(seqs))
        whole = with_originals(zone, contents)
        return with_unplaced(whole, stage.view, stage.working.unrepaired), origins

    def claims_of_summary(self, summary: str) -> tuple[Claim, ...] | None:
        """Return what the lines of a summary that this conversation has had rest on; None if that is not known."""
        with self._transaction(self._lease.tenant_id) as connection:
            return claims.claims_of_summary(connection, self._lease.conversation_id, summary)

    def unsourced_summary(self) -> str | None:
        """Return the newest summary that named no sources, None if all did."""
        with self._transaction(self._lease.tenant_id) as connection:
            return claims.unsourced_summary(connection, self._lease.conversation_id)

    def record(self, step: Step, outcome: StepOutcome, stage: Stage) -> StepRecord:
        """Return the record of a step as if it were committed."""
        return runs.StepRecord(
            name=step.name,
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
        """Return a record with the time that the step has taken so far."""
        return record._replace(duration_ms=self._milliseconds())

    def commit_step(self, made: MadeStep, verdict: SwapVerdict | None = None) -> Result:
        """Commit what a step made, or write down why it is not; `verdict` is None if price does not matter."""
        reading, outcome, record, failure = made
        if failure is not None:
            return self.fail(record, failure.code, failure.detail)
        if outcome.reason is not None:
            return self.skip(record, outcome.reason)
        if verdict is not None:
            record = _with_note(record, verdict.note)
            if verdict.action == "not_yet":
                return self.skip(record, RunReason.NOT_WORTH_IT_YET)
        new = outcome.settle(reading.stage, str(self._lease.run_id))
        record = _with_note(record, *masked_note(new.masked))
        METRICS.masked(new.masked)
        lifetime = verdict.lifetime if verdict is not None and verdict.action == "waits" else None
        return self.commit(reading.material, new, record, waits_for_cache=lifetime)

    def commit(
        self, material: Material, new: NewSnapshot, record: StepRecord, *, waits_for_cache: int | None = None
    ) -> Result:
        """Write the snapshot and its step; a pending one has to wait for the end of a tool loop.

        A snapshot that holds text of messages that it does not cover is a failed step. Raises RunLostError if the
        commit comes too late, HeadMovedError if the run has to be ended for that.
        """
        recorded: list[StepRecord] = []

        def write(connection: Connection) -> snapshots.Outcome:
            written = runs.written_step(connection, self._lease, record.name, after_version=material.last_version)
            if written is not None:
                return snapshots.Outcome(written.snapshot_version, pending=written.reason in WAITING)
            outcome = snapshots.commit(
                connection,
                self._lease,
                material,
                new,
                step=record.name,
                summarizer=record.summarizer,
                policy=self._lease.policy,
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
            raise (HeadMovedError if outcome.lost == RunReason.HEAD_MOVED else RunLostError)(outcome.lost)
        pause_for_test("snapshot.committed")
        for step in recorded:
            METRICS.step_recorded(step)
        return "pending" if outcome.pending else "committed"

    def skip(self, record: StepRecord, reason: str) -> Literal["skipped"]:
        """Write a step down that changed nothing."""
        self._write_unchanged(record._replace(state=StepState.SKIPPED, reason=reason))
        return "skipped"

    def fail(self, record: StepRecord, reason: str, error: str) -> Literal["failed"]:
        """Write a step down that failed."""
        self._write_unchanged(record._replace(state=StepState.FAILED, reason=reason, error=error))
        return "failed"

    def end(
        self,
        *,
        state: RunState | None = None,
        reason: str | None = None,
        error: str | None = None,
        waits_from: int | None = None,
        results_through: int | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        """Close the run, set how far the conversation has to grow before the next try, and ask for another check.

        With `waits_from` its summary waits for another day's budget, to be made from that version. `results_through` is
        the seq of the newest tool result that was looked at; `bounds` are those of a pause, see `holds_after`.
        """
        lease = self._lease
        with self._transaction(lease.tenant_id) as connection:
            steps = runs.steps_of(connection, [lease.run_id])
            done = any(step.state == StepState.COMMITTED for step in steps)
            # Steps of an attempt before, or before the run was handed over, say nothing of what there was to do now.
            own = steps if done or self._has_written else ()
            last = own[-1].reason if own else RunReason.UNDER_BUDGET
            is_overtaken = last == RunReason.HEAD_MOVED
            by_thresholds = lease.strategy is None
            if last not in WAITING and by_thresholds and is_over_by_fixed(steps, self._fixed_tokens, lease.policy):
                last = RunReason.FIXED_TOKENS_OVER_THRESHOLD
            self._hold(connection, steps, results_through, bounds)
            conversations.mark_due(connection, lease.conversation_id)
            ended = state or (RunState.COMMITTED if done else RunState.SKIPPED)
            if ended is RunState.FAILED and any(step.snapshot_version is not None for step in steps):
                ended = RunState.DEGRADED
            if waits_from is not None:
                waiting_summaries.remember(connection, lease, waits_from)
            if not runs.end(connection, lease, ended, reason or last, error):
                raise RunLostError(RunReason.LEASE_LOST)
            if is_overtaken and lease.parent_version is not None:
                # Nothing else brings it about: no threshold asks for what an overflow left out.
                requested.summarize_again(connection, lease, lease.policy, parent_version=lease.parent_version)
        pause_for_test("run.ended")
        METRICS.run_ended(ended, reason or last)
        log.info("run.ended", state=ended, reason=reason or last, trigger=lease.trigger)

    def _hold(
        self, connection: Connection, steps: Sequence[AnyRow], results_through: int | None, bounds: Bounds | None
    ) -> None:
        """Hold back what was tried, and what the counters promise although there is nothing to do."""
        lease = self._lease
        if lease.strategy is not None or lease.base_version is not None:
            return  # It ran whatever the thresholds say, perhaps with another policy: it says nothing about checks.
        if any(step.reason in WAITING for step in steps):
            return  # Nothing begins while it waits, and the counters will be others when it is over.
        holds = holds_after(steps, lease.policy, bounds=bounds, has_media=self._has_media)
        conversations.hold(
            connection,
            lease.conversation_id,
            tool_results=holds.tool_results,
            summary=holds.summary,
            trim=holds.trim,
            # What was put off is to be cut in the next pause, whatever has come.
            results_through=None if holds.puts_off else results_through,
            media_through=self._seen,
            seen=self._seen,
        )

    def _write_unchanged(self, record: StepRecord) -> None:
        """Write a step down that left the context as it was."""
        record = self.timed(record)
        record = record._replace(tokens_after=record.tokens_before, messages_after=record.messages_before)
        with self._transaction(self._lease.tenant_id) as connection:
            self._add(connection, record)
        METRICS.step_recorded(record)

    def _add(self, connection: Connection, record: StepRecord) -> StepRecord:
        """Write a step down and return it."""
        runs.add_step(connection, self._lease, record)
        self._has_written = True
        return record

    def _milliseconds(self) -> int:
        return round((time.monotonic() - self._started) * 1000)


def _with_note(record: StepRecord, *notes: str) -> StepRecord:
    return record._replace(detail="; ".join(filter(None, (record.detail, *notes))))
