"""One attempt at one run: read, decide, cut or summarize, commit, and write every step down.

No transaction is open while a summary is made; each read and each commit is a short one of its own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import structlog

from compaction import summary as summaries
from compaction.ladder import Load, Step, decide, growth_margin, saves_enough, trim_is_due
from compaction.messages import has_tool_results
from compaction.snapshot import Working, build, serialized_bytes, settle
from compaction.tool_results import cut_tool_results, diagnostic
from compaction.trimming import drop_oldest
from compaction.view import View, view_tokens
from store import conversations, runs, snapshots
from store.broker import SUMMARIES
from worker.leases import StoppingError
from worker.summarizers import SummaryError, SummaryRequest

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import Connection

    from compaction.policy import Policy
    from compaction.snapshot import NewSnapshot
    from compaction.trimming import Trim
    from store.runs import Lease, StepRecord
    from store.snapshots import Material
    from store.tables import AnyRow
    from worker.compactor import Compactor
    from worker.summarizers.base import Spent

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Stage:
    """The conversation as a step finds it."""

    material: Material
    working: Working

    @property
    def tokens(self) -> int:
        """Estimated tokens of the context, corrected by what the API counted before."""
        return self.estimate(self.working.view)

    def estimate(self, view: View) -> int:
        """Return the estimated tokens of a view of this conversation."""
        return round(view_tokens(view) * self.material.token_ratio)

    @property
    def newest_result(self) -> int:
        """Seq of the newest tool-result message, -1 for none."""
        view = self.working.view
        return max((message.seq for message in view if has_tool_results(message.role, message.content)), default=-1)

    @property
    def load(self) -> Load:
        """What the ladder decides from; holds do not bind a run that has begun."""
        fixed = round(self.material.fixed_tokens * self.material.token_ratio)
        return Load(self.tokens + fixed, self.material.measured, bytes=self.material.context_bytes)


WAITS: Final = "waits_for_tool_loop"
HEAD_MOVED: Final = "head_moved"
NOTHING_TO_CUT: Final = "nothing_to_cut"
STOPPED: Final = "worker_stopped"
_VOID: Final = frozenset({HEAD_MOVED, STOPPED, runs.LEASE_LOST})
"""Reasons of steps that say nothing about whether another try would do."""


class RunLostError(Exception):
    """The run is somebody else's now, or the conversation moved under it: nothing of this attempt may count."""


class Execution:
    """One attempt at one run."""

    def __init__(self, compactor: Compactor, lease: Lease) -> None:
        self._compactor = compactor
        self._lease = lease
        self._policy: Policy = lease.policy
        self._transaction = compactor.database.transaction
        self._started = time.monotonic()
        self._seen: int | None = None
        self._results_through: int | None = None

    def go(self) -> None:
        """Climb the ladder."""
        stage = self._load()
        queue = self._lease.queue
        if queue != SUMMARIES and decide(stage.load, self._policy).tool_results and self._cut_tool_results(stage):
            stage = self._load()
        if stage.material.pending_version:
            return self._end()
        if not decide(stage.load, self._policy).summary:
            return self._finish(stage)
        if queue != SUMMARIES and self._summaries_on:
            return self._compactor.hand_over(self._lease)
        return self._shorten(stage)

    def _finish(
        self, stage: Stage, *, state: runs.Ended | None = None, reason: str | None = None, error: str | None = None
    ) -> None:
        """End, after the byte trim where it is due: what nothing else made small enough."""
        if not stage.material.pending_version and trim_is_due(stage.load, self._policy):
            self._trim(stage)
        return self._end(state=state, reason=reason, error=error)

    @property
    def _summaries_on(self) -> bool:
        return self._policy.compaction_enabled and self._compactor.can_summarize

    def _load(self) -> Stage:
        with self._transaction(self._lease.tenant_id, one_moment=True) as connection:
            material = snapshots.load(connection, self._lease.tenant_id, self._lease.conversation_id)
        working = build(
            material.snapshot,
            material.tail,
            self._policy,
            strip_thinking_through=material.strip_thinking_through,
        )
        self._started = time.monotonic()
        if self._seen is None:
            self._seen = working.last_seq
        return Stage(material, working)

    def _cut_tool_results(self, stage: Stage) -> bool:
        view, input_tokens = stage.working.view, stage.load.input_tokens
        self._results_through = stage.newest_result
        cut = cut_tool_results(view, self._policy.tool_result_retention_chars)
        detail = diagnostic(cut.results, input_tokens, self._policy.input_token_budget)
        record = self._record(Step.TOOL_RESULTS, stage, cut.view)._replace(results_cut=cut.results, detail=detail)
        if not cut.results:
            return self._skip(record, NOTHING_TO_CUT)
        if not saves_enough(record.tokens_before, record.tokens_after, self._policy):
            return self._skip(record, "not_smaller")
        new = settle(
            stage.working,
            cut.view,
            run_id=str(self._lease.run_id),
            truncated=[view[index].seq for index in cut.indices],
        )
        self._commit(stage, new, record)
        log.info(
            "tool_results.cut",
            note=detail,
            results=cut.results,
            tokens=input_tokens,
            budget=self._policy.input_token_budget,
        )
        return True

    def _shorten(self, stage: Stage) -> None:
        """Summarize, or drop the oldest where that is off or fails."""
        if not self._summaries_on:
            self._drop(stage, Step.FALLBACK)
            return self._finish(self._load(), reason="summaries_disabled")
        try:
            done = self._summarize(stage)
        except SummaryError as error:
            dropped = self._drop(self._load(), Step.FALLBACK)
            reason = "summary_failed_fallback_committed" if dropped else "summary_failed_nothing_dropped"
            return self._finish(self._load(), state="failed", reason=reason, error=str(error))
        after = self._load()
        if done and len(after.working.view) > self._policy.max_conversation_messages:
            self._drop(after, Step.BACKSTOP)
            after = self._load()
        return self._finish(after)

    def _summarize(self, stage: Stage) -> bool:
        """Return whether a summary is in the context now: one that is pending is not yet."""
        summarizer = self._compactor.summarizer
        view, previous = stage.working.view, stage.working.snapshot.summary
        record = self._record(Step.SUMMARY, stage, view)._replace(
            detail=f"Estimated {stage.load.input_tokens:,} tokens, "
            f"threshold {self._policy.compaction_threshold_tokens:,}",
            summarizer=summarizer.name,
            model=summarizer.model,
        )
        zone = summaries.find_zone(view, self._policy.protected_tail_messages)
        if zone is None:
            return self._skip(record, "zone_too_small")
        if stage.estimate(view[zone.start : zone.stop]) < self._policy.min_savings_tokens:
            return self._skip(record, "not_smaller")
        try:
            request = SummaryRequest(view[zone.start : zone.stop], previous, self._policy)
            made = self._compactor.ask(request, self._lease)
        except StoppingError:
            self._skip(self._timed(record), STOPPED)
            raise
        except SummaryError as error:
            failed = spend(self._timed(record), error.spent)._replace(
                state="failed", reason=error.code, error=error.detail
            )
            self._write(failed)
            log.warning("summary.failed", reason=error.code, detail=error.detail)
            raise
        rebuilt = summaries.rebuild(view, zone, made.text, previous=previous)
        record = spend(self._record(Step.SUMMARY, stage, rebuilt, record), made.spent)
        record = record._replace(
            prompt_version=made.prompt_version,
            detail=f"Summarized {zone.stop - zone.start} messages; {record.detail}",
        )
        if not saves_enough(record.tokens_before, record.tokens_after, self._policy):
            return self._skip(record, "not_smaller")
        new = settle(stage.working, rebuilt, run_id=str(self._lease.run_id), removed="summarized", summary=made.text)
        pending = self._commit(stage, new, record)
        log.info("summary.committed", tokens_before=record.tokens_before, tokens_after=record.tokens_after)
        return not pending

    def _drop(self, stage: Stage, step: Literal[Step.FALLBACK, Step.BACKSTOP]) -> bool:
        limit = self._policy.max_conversation_messages
        trim = drop_oldest(
            stage.working.view,
            lambda count, _: count <= limit,
            carries_summary=stage.working.snapshot.summary is not None,
        )
        return self._commit_trim(stage, step, trim, f"the limit is {limit:,} messages")

    def _trim(self, stage: Stage) -> bool:
        limit = self._policy.max_context_bytes
        trim = drop_oldest(
            stage.working.view,
            lambda _, size: size <= limit,
            measure=serialized_bytes,
            carries_summary=stage.working.snapshot.summary is not None,
        )
        return self._commit_trim(stage, Step.TRIM, trim, f"the limit is {limit:,} bytes")

    def _commit_trim(self, stage: Stage, step: Step, trim: Trim, limit: str) -> bool:
        record = self._record(step, stage, trim.view)._replace(
            detail=f"Dropped {len(trim.dropped)} of the oldest messages; {limit}"
        )
        if not trim.dropped:
            return self._skip(record, "nothing_to_drop")
        if not saves_enough(record.tokens_before, record.tokens_after, self._policy):
            return self._skip(record, "not_smaller")
        new = settle(
            stage.working,
            trim.view,
            run_id=str(self._lease.run_id),
            truncated=[stage.working.view[index].seq for index in trim.cut],
        )
        self._commit(stage, new, record)
        log.warning("context.dropped", step=step, messages=len(trim.dropped))
        return True

    def _commit(self, stage: Stage, new: NewSnapshot, record: StepRecord) -> bool:
        """Write the snapshot and its step; return whether it has to wait for the end of a tool loop."""
        with self._transaction(self._lease.tenant_id) as connection:
            outcome = snapshots.commit(
                connection,
                self._lease,
                stage.material,
                new,
                step=Step(record.name),
                summarizer=record.summarizer,
                policy=self._policy,
            )
            if outcome.version is not None:
                reason = WAITS if outcome.pending else None
                self._add(connection, record._replace(snapshot_version=outcome.version, reason=reason))
        if outcome.lost is not None:
            self._skip(record, outcome.lost)
            if outcome.lost == HEAD_MOVED:
                # By an edit, or a restore. What was made from the old head is worth nothing.
                self._end()
            raise RunLostError(outcome.lost)
        return outcome.pending

    def _record(self, step: Step, stage: Stage, after: View, base: StepRecord | None = None) -> StepRecord:
        record = base or runs.StepRecord(
            name=step,
            state="committed",
            tokens_before=stage.tokens,
            tokens_after=0,
            messages_before=len(stage.working.view),
            messages_after=0,
            duration_ms=0,
        )
        return self._timed(record._replace(tokens_after=stage.estimate(after), messages_after=len(after)))

    def _timed(self, record: StepRecord) -> StepRecord:
        return record._replace(duration_ms=round((time.monotonic() - self._started) * 1000))

    def _skip(self, record: StepRecord, reason: str) -> Literal[False]:
        self._write(
            record._replace(
                state="skipped",
                reason=reason,
                tokens_after=record.tokens_before,
                messages_after=record.messages_before,
            )
        )
        return False

    def _write(self, record: StepRecord) -> None:
        with self._transaction(self._lease.tenant_id) as connection:
            self._add(connection, record)

    def _add(self, connection: Connection, record: StepRecord) -> None:
        runs.add_step(connection, self._lease, record)

    def _end(self, *, state: runs.Ended | None = None, reason: str | None = None, error: str | None = None) -> None:
        """Close the run, set how far the conversation has to grow before the next try, and ask for another check."""
        with self._transaction(self._lease.tenant_id) as connection:
            steps = runs.steps_of(connection, [self._lease.run_id])
            done = any(step.state == "committed" for step in steps)
            last = steps[-1].reason if steps else "under_budget"
            self._hold(connection, steps)
            conversations.mark_due(connection, self._lease.conversation_id)
            ended = state or ("committed" if done else "skipped")
            if not runs.end(connection, self._lease, ended, reason or last, error):
                raise RunLostError(runs.LEASE_LOST)
        log.info("run.ended", state=ended, reason=reason or last, trigger=self._lease.trigger)

    def _hold(self, connection: Connection, steps: Sequence[AnyRow]) -> None:
        """Hold back what was tried, and what the counters promise although there is nothing to do."""
        if any(step.reason == WAITS for step in steps):
            return  # Nothing begins while it waits, and the counters will be others when it is over.
        policy = self._policy

        def held(names: Collection[str], threshold: int) -> conversations.Hold | None:
            reasons = {step.reason for step in steps if step.name in names}
            if reasons and reasons <= _VOID:
                return None
            # With nothing to cut, the next tool-result message makes this one old at once.
            growth = 0 if reasons == {NOTHING_TO_CUT} else growth_margin(threshold, policy)
            return conversations.Hold(growth, above=-1 if reasons else threshold)

        conversations.hold(
            connection,
            self._lease.conversation_id,
            tool_results=held({Step.TOOL_RESULTS}, policy.input_token_budget),
            summary=held({Step.SUMMARY, Step.FALLBACK, Step.BACKSTOP}, policy.compaction_threshold_tokens),
            trim=policy.max_context_bytes // 10 if any(step.name == Step.TRIM for step in steps) else None,
            results_through=self._results_through,
            seen=self._seen,
        )


def spend(record: StepRecord, spent: Spent) -> StepRecord:
    """Return a step with what its model calls cost."""
    return record._replace(
        model_calls=spent.calls,
        model_input_tokens=spent.input_tokens,
        model_output_tokens=spent.output_tokens,
        cost_usd=spent.cost_usd,
    )
