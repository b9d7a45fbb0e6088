"""One attempt at one run: the climb up the ladder, step by step.

No transaction is open while a summary is made; each read and each commit is a short one of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from compaction.cost.pauses import pause_policy
from compaction.cost.swap import bounds_of
from compaction.steps import steps
from compaction.steps.ladder import BEFORE_SUMMARY, Result, Step, decide, next_step, strategy_names
from compaction.steps.runs import RunReason, RunState, RunTrigger
from runtime import strategies
from runtime.broker import SUMMARIES
from worker.runs.journal import Journal
from worker.runs.summarizing import Summarizing
from worker.summarizers.base import SummaryError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compaction.steps.steps import StepOutcome
    from compaction.view import View
    from store.runs.runs import Lease
    from worker.runs.journal import Reading
    from worker.runs.resources import RunResources
    from worker.runs.summarizing import Way
    from worker.runs.swapping import SwapVerdict

log = structlog.get_logger()


class Execution:
    """One attempt at one run over the conversation's head."""

    def __init__(self, resources: RunResources, lease: Lease, ways: Sequence[Way] = ()) -> None:
        self._resources = resources
        self._bounds = bounds_of(lease.policy)
        if lease.trigger == RunTrigger.PAUSE:
            lease = lease._replace(policy=pause_policy(lease.policy))
        self._lease = lease
        self._journal = Journal(resources.database, lease)
        self._journal.verdict_of = self._verdict
        self._summarizing = Summarizing(resources, lease, self._journal, ways)
        self._tried: dict[Step, Result] = {}
        self._failure: SummaryError | None = None
        self._waits_from: int | None = None
        self._read_through: int | None = None
        """Seq of the newest message when a summary was asked for: what came after it is for the next one."""
        self._committed: View | None = None
        """What the last step that needs no summarizer has put in force, or would have but for a tool loop."""
        if lease.trigger == RunTrigger.PAUSE:
            # Nothing is dropped, and no extract made, that no threshold asks for.
            self._journal.bounds = self._bounds
            self._tried |= dict.fromkeys((Step.MEDIA, Step.EXTRACT, Step.FALLBACK), "skipped")
        if lease.queue == SUMMARIES:
            self._tried |= dict.fromkeys(BEFORE_SUMMARY, "skipped")

    def go(self) -> None:
        """Climb the ladder, or take the one step that was asked for."""
        now = self._journal.read()
        if now.material.pending_version:
            return self._journal.end(reason=RunReason.WAITS_FOR_TOOL_LOOP)
        if self._is_summary_alone(now):
            self._tried |= dict.fromkeys(BEFORE_SUMMARY, "skipped")
        while not now.material.pending_version and (step := self._next(now)) is not None:
            if step is Step.SUMMARY and self._is_for_others:
                return self._resources.hand_over(self._lease)
            self._tried[step] = self._do(step, now)
            if self._is_enough(now):
                break
            if step in {Step.SUMMARY, Step.EXTRACT} or self._tried[step] != "skipped":
                now = self._journal.read()
        return self._end()

    def _verdict(self, outcome: StepOutcome, now: Reading) -> SwapVerdict | None:
        """Return what becomes of what a step made: of the run's last alone, where no limit is passed."""
        swapping = self._resources.swapping
        due = decide(now.stage.load, self._lease.policy)
        if swapping is None or self._committed is not None or due.trim or due.media:
            return None
        tried = self._tried | {outcome.step: "committed"}
        if any(done == "committed" for done in self._tried.values()) or self._next(now, outcome.view, tried):
            return None
        return swapping.verdict(self._lease, now.stage, outcome, self._bounds)

    def _as_deep_as_it_pays(self, outcome: StepOutcome, now: Reading) -> StepOutcome:
        """Return a cut of tool results that goes as deep as pays, where it is the run's only step and in no pause."""
        swapping, lease = self._resources.swapping, self._lease
        if swapping is None or lease.strategy is not None or lease.trigger == RunTrigger.PAUSE or self._tried:
            return outcome
        if decide(now.stage.load, lease.policy).trim or self._next(now, outcome.view, {outcome.step: "committed"}):
            return outcome
        return swapping.as_deep_as_it_pays(lease, now.stage, outcome, self._bounds)

    def _is_summary_alone(self, now: Reading) -> bool:
        """Tell whether a summary is due and tool results are held back: their next cut would soon be followed by it."""
        load = now.stage.load
        return (
            self._lease.policy.tool_results_growth_ratio > 0
            and self._lease.strategy is None
            and self._summarizing.is_on
            and decide(load, self._lease.policy).summary
            and now.material.stored_tokens <= now.material.tool_results_hold
        )

    def _is_enough(self, now: Reading) -> bool:
        """Tell whether what was committed leaves nothing due, so that it need not be read; the next check does anew."""
        view, self._committed = self._committed, None
        return view is not None and self._next(now, view) is None

    def _next(self, now: Reading, made: View | None = None, tried: Mapping[Step, Result] | None = None) -> Step | None:
        """Return the next step, with `made` in force where that is given, and after others than those of this run."""
        view = now.stage.view if made is None else made
        newer = steps.newer_messages(view, self._read_through)
        return next_step(
            self._tried if tried is None else tried,
            now.stage.load if made is None else now.stage.load_of(made),
            now.stage.count(view[: len(view) - newer]) + newer,
            self._lease.policy,
            summaries=self._summarizing.is_on,
            extracts=True,
            strategy=self._lease.strategy,
            newer=newer,
        )

    def _do(self, step: Step, now: Reading) -> Result:
        match step:
            case Step.SUMMARY:
                self._read_through = now.stage.working.last_seq
                return self._summarize(now)
            case Step.EXTRACT:
                self._read_through = now.stage.working.last_seq
                return self._summarizing.extract(now)
            case _:
                return self._take(step, now)

    @property
    def _is_for_others(self) -> bool:
        """Whether a summary is for the workers that wait for models."""
        return self._lease.queue != SUMMARIES and self._lease.strategy != "extract" and self._summarizing.is_on

    def _summarize(self, now: Reading) -> Result:
        if (note := self._not_worth_it(now)) is not None:
            return self._journal.skip(
                self._summarizing.record(now.stage)._replace(detail=note), RunReason.NOT_WORTH_IT_YET
            )
        try:
            return self._summarizing.step(now)
        except SummaryError as error:
            if error.code == RunReason.BUDGET_SPENT:
                self._waits_from = now.material.head_version
            else:
                self._failure = error
            if self._lease.policy.tool_results_growth_ratio > 0:
                # Held back for the summary's sake: without one a cut may do, before an extract takes its place.
                self._tried = {step: done for step, done in self._tried.items() if step not in BEFORE_SUMMARY}
            return "failed"

    def _not_worth_it(self, now: Reading) -> str | None:
        """Return why a summary that no threshold asks for is not worth its price; None if it is."""
        swapping = self._resources.swapping
        if self._lease.trigger != RunTrigger.PAUSE or swapping is None or self._lease.strategy is not None:
            return None
        model = self._summarizing.record(now.stage).model
        is_worth_it, note = swapping.is_worth_summary(self._lease, now.stage, model)
        return None if is_worth_it else note

    def _take(self, step: Step, now: Reading) -> Result:
        if step is Step.TOOL_RESULTS or step is Step.PRUNE:
            self._journal.results_through = now.stage.newest_result
        policy, strategy = self._lease.policy, self._lease.strategy
        if step is Step.STRATEGIES:
            outcome = steps.take_strategies(now.stage, policy, strategy_names(strategy, policy), strategies.load)
        else:
            by_hand = strategy is not None and strategy != "auto"
            through = self._read_through if step is Step.BACKSTOP else None
            outcome = steps.take(step, now.stage, policy, by_hand=by_hand, through=through)
            if step is Step.TOOL_RESULTS:
                outcome = self._as_deep_as_it_pays(outcome, now)
        done = self._journal.take(outcome, now)
        if done == "skipped":
            return done
        self._committed = outcome.view
        tokens = now.stage.load.input_tokens
        match step:
            case Step.TOOL_RESULTS:
                budget = policy.input_token_budget
                log.info(
                    "tool_results.cut", note=outcome.detail, results=outcome.results_cut, tokens=tokens, budget=budget
                )
            case Step.PRUNE:
                log.info("tool_results.pruned", note=outcome.detail, results=outcome.results_cut, tokens=tokens)
            case Step.STRATEGIES:
                log.info("strategies.taken", note=outcome.detail, tokens=tokens)
            case Step.MEDIA:
                log.info("media.shed", note=outcome.detail, tokens=tokens)
            case _:
                log.warning("context.dropped", step=step, messages=len(now.stage.view) - len(outcome.view))
        return done

    def _end(self) -> None:
        """End the run, with the reason where its last step does not have it."""
        done = {step for step, result in self._tried.items() if result in {"committed", "pending"}}
        state: RunState | None = None
        reason = error = None
        if self._waits_from is not None:
            reason = RunReason.BUDGET_SPENT
        elif self._failure is not None:
            state, error = RunState.FAILED, str(self._failure)
            if Step.EXTRACT in done:
                reason = RunReason.SUMMARY_FAILED_EXTRACT_COMMITTED
            elif Step.FALLBACK in done:
                reason = RunReason.SUMMARY_FAILED_FALLBACK_COMMITTED
            else:
                reason = RunReason.SUMMARY_FAILED_NOTHING_DROPPED
        elif Step.FALLBACK in self._tried and self._lease.strategy != "drop" and self._journal.bounds is None:
            reason = RunReason.SUMMARIES_DISABLED
        self._journal.end(state=state, reason=reason, error=error, waits_from=self._waits_from)
