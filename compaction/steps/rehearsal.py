"""The plan of a run, by hand or not: the ladder's own steps, rehearsed on a stage and written nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from compaction.steps import steps
from compaction.steps.ladder import saves_enough
from compaction.steps.plan import Progress, RunContext, next_step_of_stage
from compaction.steps.runs import RunReason
from compaction.tokens import content_tokens
from compaction.view import WRITTEN, View

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from compaction.policy import Policy
    from compaction.shorten.strategies import ExtraStrategy
    from compaction.steps.catalogue import Result, Step
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

    name: str
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
        self._context = RunContext(policy, strategy, can_summarize=summaries or strategy == "extract", load=load)
        self._waits = waits
        self._native = native and strategy != "extract"
        self._missing = 0
        """Tokens that the summary would have more than its placeholder."""

    def go(self, stage: Stage) -> RunPlan:
        progress = Progress()
        planned: list[PlannedStep] = []
        while step := next_step_of_stage(self._context, progress, stage):
            if step.act is None:
                plan, stage = self._plan_summary(step, stage)
            else:
                outcome = step.act(stage, self._policy, self._context.options(progress))
                plan, stage = self._plan(step, outcome, stage)
            progress = progress.after(step, plan.result)
            planned.append(plan)
        has_placeholder = progress.summary not in {None, "skipped"}
        return RunPlan(tuple(planned), stage.view, stage.tokens + self._missing, has_placeholder)

    def _plan_summary(self, step: Step, stage: Stage) -> tuple[PlannedStep, Stage]:
        outcome = steps.StepOutcome(stage.view, None, steps.threshold_note(stage, self._policy))
        if not self._context.can_summarize:
            return self._plan(step, outcome._replace(reason=RunReason.SUMMARIES_DISABLED), stage)
        if self._native:
            stage = steps.pin_first_request(stage)
        zone = (steps.find_prefix if self._native else steps.find_zone)(stage, self._policy)
        if isinstance(zone, str):
            return self._plan(step, outcome._replace(reason=zone), stage)
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
        plan, after = self._plan(step, outcome, stage, missing)
        return plan._replace(zone_seqs=_seqs(replaced), summary_tokens=tokens), after

    def _plan(self, step: Step, outcome: StepOutcome, stage: Stage, missing: int = 0) -> tuple[PlannedStep, Stage]:
        before = stage.tokens + self._missing
        plan = PlannedStep(
            step.name,
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
