"""One attempt at one run over the conversation's head: take the next step, run it, commit.

No transaction is open while a summary is made; each read and each commit is a short one of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from compaction.cost.pauses import pause_policy
from compaction.cost.swap import bounds_of
from compaction.steps.catalogue import BEFORE_SUMMARY, LADDER
from compaction.steps.ladder import decide
from compaction.steps.plan import Progress, RunContext, ending_of, next_step_of_stage
from compaction.steps.runs import RunReason, RunTrigger
from compaction.steps.steps import StepOutcome
from runtime import strategies
from runtime.broker import SUMMARIES
from worker.runs.summarizing import SummaryWriter
from worker.runs.transactions import HeadMovedError, MadeStep, RunTransactions
from worker.summarizers.base import SummaryError

if TYPE_CHECKING:
    from compaction.steps.catalogue import Act, Result, Step
    from compaction.steps.runs import RunState
    from compaction.view import View
    from store.runs.runs import Lease
    from worker.runs.resources import RunResources
    from worker.runs.summarizing import WriteSigned
    from worker.runs.swapping import SwapVerdict
    from worker.runs.transactions import Reading

log = structlog.get_logger()

FOR_LIMITS: Final = frozenset(step for step in LADDER if step.is_for_limits)


class LadderRun:
    """One attempt at one run over the conversation's head; `write_signed` asks the API for its own summaries."""

    def __init__(self, resources: RunResources, lease: Lease, write_signed: WriteSigned | None = None) -> None:
        self._resources = resources
        self._bounds = bounds_of(lease.policy)
        self._is_in_pause = lease.trigger == RunTrigger.PAUSE
        if self._is_in_pause:
            lease = lease._replace(policy=pause_policy(lease.policy))
        self._lease = lease
        self._transactions = RunTransactions(resources.database, lease)
        self._writer = SummaryWriter(resources, lease, self._transactions)
        self._write_signed = write_signed
        excluded = FOR_LIMITS if self._is_in_pause else frozenset()
        if lease.queue == SUMMARIES:
            excluded |= BEFORE_SUMMARY
        self._context = RunContext(
            lease.policy,
            lease.strategy,
            can_summarize=self._writer.is_on,
            can_extract=True,
            excluded=excluded,
            load=strategies.load,
        )
        self._progress = Progress()
        self._failure: SummaryError | None = None
        self._waits_from: int | None = None
        self._results_through: int | None = None

    def run(self) -> None:
        """Take the steps that are due, or the one that was asked for, and end the run."""
        try:
            self._run()
        except HeadMovedError:
            self._end()
            raise

    def _run(self) -> None:
        now = self._transactions.read()
        if now.material.pending_version:
            return self._end(reason=RunReason.WAITS_FOR_TOOL_LOOP)
        if self._comes_summary_soon(now):
            self._context = self._context.without(BEFORE_SUMMARY)
        while not now.material.pending_version and (step := self._next_step(now)) is not None:
            if step.summarizer is not None:
                if self._is_for_summaries_queue:
                    return self._resources.hand_over(self._lease)
                self._progress = replace(self._progress, read_through=now.stage.working.last_seq)
            made, result = self._run_step(step, now)
            self._progress = self._progress.after(step, result)
            if step.summarizer is None:
                if result == "skipped":
                    continue
                if made is not None and self._next_step(now, made.outcome.view) is None:
                    break  # Nothing is left to do, so it need not be read; the next check looks anew.
            now = self._transactions.read()
        ending = ending_of(self._context, self._progress, has_failed=self._failure is not None)
        if self._waits_from is not None:
            return self._end(reason=RunReason.BUDGET_SPENT, waits_from=self._waits_from)
        return self._end(ending.reason, ending.state, error=None if self._failure is None else str(self._failure))

    def _next_step(self, now: Reading, view: View | None = None) -> Step | None:
        """Return the next step, as if `view` were in force if that is given."""
        return next_step_of_stage(self._context, self._progress, now.stage, view)

    def _run_step(self, step: Step, now: Reading) -> tuple[MadeStep | None, Result]:
        """Make a step and commit it; return what it made, None if there was a failure."""
        if step.act is None:
            try:
                made = self._summarize(step, now)
            except SummaryError as error:
                self._remember_failure(error, now)
                return None, "failed"
        else:
            made = self._act(step, step.act, now)
        result = self._transactions.commit_step(made, self._verdict_on(step, made))
        if result in {"committed", "pending"}:
            self._log(step, made)
        return made, result

    def _act(self, step: Step, act: Act, now: Reading) -> MadeStep:
        """Make a step that needs no summarizer."""
        options = self._context.options(self._progress)
        if step.looks_at_results:
            self._results_through = now.stage.newest_result
        outcome = act(now.stage, self._lease.policy, options)
        if step.depths is not None and outcome.reason is None and self._may_choose_depth(step, outcome, now):
            swapping = self._resources.swapping
            if swapping is not None:
                outcome = swapping.choose_depth(self._lease, now.stage, step, outcome, options, self._bounds)
        return MadeStep(now, outcome, self._transactions.record(step, outcome, now.stage))

    def _summarize(self, step: Step, now: Reading) -> MadeStep:
        """Make a summary, or an extract in its place. Raises SummaryError, StoppingError."""
        if step.summarizer == "extract":
            return self._writer.write_extract(step, now)
        note = self._note_if_not_worth_it(step, now)
        if note is not None:
            outcome = StepOutcome(now.stage.view, RunReason.NOT_WORTH_IT_YET)
            return MadeStep(now, outcome, self._writer.record(step, now.stage)._replace(detail=note))
        if self._write_signed is not None and self._writer.asks_models:
            made = self._write_signed(self._writer, step, now)
            if made is not None:
                return made
        return self._writer.write(step, now)

    def _remember_failure(self, error: SummaryError, now: Reading) -> None:
        if error.code == RunReason.BUDGET_SPENT:
            self._waits_from = now.material.head_version
        else:
            self._failure = error
        if self._lease.policy.tool_results_growth_ratio > 0:
            # They were left out for the summary's sake: without one a cut may do, before an extract takes its place.
            self._context = replace(self._context, excluded=self._context.excluded - BEFORE_SUMMARY)

    def _verdict_on(self, step: Step, made: MadeStep) -> SwapVerdict | None:
        """Return whether what was made waits until it pays: only the run's single step, if no limit is passed."""
        swapping, stage = self._resources.swapping, made.reading.stage
        if swapping is None or made.outcome.reason is not None or not step.waits_until_it_pays:
            return None
        due = decide(stage.load, self._lease.policy)
        if due.trim or due.media or self._progress.has_committed:
            return None
        after = self._progress.after(step, "committed")
        if next_step_of_stage(self._context, after, stage, made.outcome.view) is not None:
            return None
        return swapping.verdict(self._lease, stage, step, made.outcome, self._bounds)

    def _may_choose_depth(self, step: Step, outcome: StepOutcome, now: Reading) -> bool:
        """Return whether a cut may leave the first results whole: only as the run's single step, and in no pause."""
        if self._lease.strategy is not None or self._is_in_pause or not self._progress.has_changed_nothing:
            return False
        after = self._progress.after(step, "committed")
        is_last = next_step_of_stage(self._context, after, now.stage, outcome.view) is None
        return is_last and not decide(now.stage.load, self._lease.policy).trim

    def _comes_summary_soon(self, now: Reading) -> bool:
        """Return whether a summary is due and tool results are held back: it would soon follow their next cut."""
        return (
            self._lease.policy.tool_results_growth_ratio > 0
            and self._lease.strategy is None
            and self._writer.is_on
            and decide(now.stage.load, self._lease.policy).summary
            and now.material.stored_tokens <= now.material.tool_results_hold
        )

    @property
    def _is_for_summaries_queue(self) -> bool:
        """Whether the workers that wait for models have to make the summary."""
        return self._lease.queue != SUMMARIES and self._writer.asks_models

    def _note_if_not_worth_it(self, step: Step, now: Reading) -> str | None:
        """Return why a summary that no threshold asks for is not worth its price; None if it is."""
        swapping = self._resources.swapping
        if not self._is_in_pause or swapping is None or self._lease.strategy is not None:
            return None
        model = self._writer.record(step, now.stage).model
        is_worth_it, note = swapping.is_worth_summary(self._lease, now.stage, model)
        return None if is_worth_it else note

    def _log(self, step: Step, made: MadeStep) -> None:
        outcome, stage = made.outcome, made.reading.stage
        (log.warning if step.drops else log.info)(
            step.event,
            step=step.name,
            note=outcome.detail,
            results=outcome.results_cut,
            messages=len(stage.view) - len(outcome.view),
            tokens=stage.load.input_tokens,
            budget=self._lease.policy.input_token_budget,
            tokens_before=made.record.tokens_before,
            tokens_after=made.record.tokens_after,
        )

    def _end(
        self,
        reason: RunReason | None = None,
        state: RunState | None = None,
        *,
        error: str | None = None,
        waits_from: int | None = None,
    ) -> None:
        self._transactions.end(
            state=state,
            reason=reason,
            error=error,
            waits_from=waits_from,
            results_through=self._results_through,
            # Nothing is held back over the thresholds of the policy for what failed in a pause.
            bounds=self._bounds if self._is_in_pause else None,
        )
