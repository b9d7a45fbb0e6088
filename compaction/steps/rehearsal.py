"""The plan of a run, by hand or not: the ladder's own steps, rehearsed on a stage and written nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from compaction.steps import steps
from compaction.steps.ladder import Result, Step, next_step, saves_enough, strategy_names
from compaction.steps.runs import RunReason
from compaction.tokens import content_tokens
from compaction.view import WRITTEN, View

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from compaction.policy import Policy
    from compaction.shorten.strategies import ExtraStrategy
    from compaction.steps.snapshot import NewSnapshot
    from compaction.steps.stage import Stage
    from compaction.steps.steps import StepOutcome
    from compaction.view import ViewMessage

SUMMARY_SHARE: Final = 10
"""A summary is taken to have this part of the tokens that it replaces, and never more than it may have."""
PLACEHOLDER: Final = (
    "(A dry run makes no summary: that of {messages:,} messages would stand here, about {tokens:,} tokens.)"
)


class PlannedStep(NamedTuple):
    """What a step would do; `reason` is why it would be skipped, or would have to wait.

    `zone_seqs` are the originals that a summary would replace, `summary_tokens` what it is estimated to have.
    """

    step: Step
    result: Result
    reason: str | None
    detail: str | None
    tokens_before: int
    tokens_after: int
    messages_before: int
    messages_after: int
    zone_seqs: tuple[int, ...] = ()
    summary_tokens: int | None = None


class RunPlan(NamedTuple):
    """The steps of a run and the view that it would give."""

    steps: tuple[PlannedStep, ...]
    view: View
    tokens: int
    """Estimated tokens of `view`, its placeholder counted as the summary."""
    placeholder: bool
    """Whether `view` has a placeholder where the summary would be."""


def plan_run(
    stage: Stage,
    policy: Policy,
    *,
    strategy: str | None,
    summaries: bool,
    waits: bool,
    native: bool = False,
    load: Callable[[str], ExtraStrategy | None] = lambda _: None,
) -> RunPlan:
    """Return what a run by hand would do, if nothing else happened; without a strategy, what thresholds ask for.

    `summaries` tells whether summaries are on, `native` that the API writes them; with `waits` a tool loop holds back
    what is committed. `load` finds installed strategies by name.
    """
    return _Rehearsal(policy, strategy, load, summaries=summaries, waits=waits, native=native).go(stage)


class _Rehearsal:
    def __init__(
        self,
        policy: Policy,
        strategy: str | None,
        load: Callable[[str], ExtraStrategy | None],
        *,
        summaries: bool,
        waits: bool,
        native: bool,
    ) -> None:
        self._policy = policy
        self._strategy = strategy
        self._load = load
        self._summaries = summaries or strategy == "extract"
        self._waits = waits
        self._native = native and strategy != "extract"
        self._missing = 0
        """Tokens that the summary would have more than its placeholder."""

    def go(self, stage: Stage) -> RunPlan:
        tried: dict[Step, Result] = {}
        planned: list[PlannedStep] = []
        while step := next_step(
            tried,
            stage.load,
            stage.count(stage.view),
            self._policy,
            summaries=self._summaries,
            strategy=self._strategy,
        ):
            plan, stage = self._summary(stage) if step is Step.SUMMARY else self._take(step, stage)
            tried[step] = plan.result
            planned.append(plan)
        placeholder = any(plan.step is Step.SUMMARY and plan.result != "skipped" for plan in planned)
        return RunPlan(tuple(planned), stage.view, stage.tokens + self._missing, placeholder)

    def _take(self, step: Step, stage: Stage) -> tuple[PlannedStep, Stage]:
        if step is Step.STRATEGIES:
            names = strategy_names(self._strategy, self._policy)
            return self._planned(steps.take_strategies(stage, self._policy, names, self._load), stage)
        outcome = steps.take(step, stage, self._policy, by_hand=self._strategy not in {None, "auto"})
        return self._planned(outcome, stage)

    def _summary(self, stage: Stage) -> tuple[PlannedStep, Stage]:
        outcome = steps.StepOutcome(Step.SUMMARY, stage.view, None, steps.threshold_note(stage, self._policy))
        if not self._summaries:
            return self._planned(outcome._replace(reason=RunReason.SUMMARIES_DISABLED), stage)
        if self._native:
            stage = steps.pin_first_request(stage)
        zone = (steps.find_prefix if self._native else steps.find_zone)(stage, self._policy)
        if isinstance(zone, str):
            return self._planned(outcome._replace(reason=zone), stage)
        replaced = stage.view[zone.start : zone.stop]
        tokens = min(self._policy.summary_max_tokens, stage.estimate(replaced) // SUMMARY_SHARE)
        text = PLACEHOLDER.format(messages=len(_seqs(replaced)), tokens=tokens)
        if self._native:
            unsigned = {"type": "compaction", "content": text, "signature": ""}
            outcome = steps.replace_prefix(stage, zone, unsigned, self._policy)
        else:
            outcome = steps.summarize(stage, zone, text, self._policy)
        missing = max(0, tokens - content_tokens(text))
        if outcome.reason is None and not saves_enough(
            stage.tokens, stage.estimate(outcome.view) + missing, self._policy
        ):
            outcome = outcome._replace(reason=RunReason.NOT_SMALLER)
        plan, after = self._planned(outcome, stage, missing)
        return plan._replace(zone_seqs=_seqs(replaced), summary_tokens=tokens), after

    def _planned(self, outcome: StepOutcome, stage: Stage, missing: int = 0) -> tuple[PlannedStep, Stage]:
        before = stage.tokens + self._missing
        plan = PlannedStep(
            outcome.step,
            "skipped",
            outcome.reason,
            steps.detail_of(outcome, stage),
            before,
            before,
            len(stage.view),
            len(stage.view),
        )
        if outcome.reason is not None:
            return plan, stage
        self._missing += missing
        new: NewSnapshot = outcome.settle(stage, "")
        after = stage.after(new, self._policy)
        return (
            plan._replace(
                result="pending" if self._waits else "committed",
                reason=RunReason.WAITS_FOR_TOOL_LOOP if self._waits else None,
                tokens_after=after.tokens + self._missing,
                messages_after=len(after.view),
            ),
            after,
        )


def _seqs(view: Sequence[ViewMessage]) -> tuple[int, ...]:
    return tuple(message.seq for message in view if message.seq != WRITTEN)
