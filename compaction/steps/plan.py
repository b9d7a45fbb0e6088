"""The plan of a run: which step comes next, as a function of the conversation, the policy and what happened so far."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from compaction.steps.catalogue import LADDER, STRATEGY_NAMES, RunMoment, step_of
from compaction.steps.ladder import decide
from compaction.steps.runs import RunReason, RunState
from compaction.steps.steps import StepOptions, newer_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from compaction.policy import Policy
    from compaction.shorten.strategies import ExtraStrategy
    from compaction.steps.catalogue import Result, Step
    from compaction.steps.ladder import Load
    from compaction.steps.stage import Stage
    from compaction.view import View


@dataclass(frozen=True)
class RunContext:
    """What a run is given, and does not change: its policy, what somebody asked for, the steps that it leaves out."""

    policy: Policy
    strategy: str | None = None
    """What a run by hand asks for, `auto` for the whole ladder; None if thresholds brought the run about. One step that
    was asked for is taken whatever the thresholds say. So are the steps of `auto` up to the summary, but nothing is
    dropped below its threshold because a summary failed."""
    can_summarize: bool = False
    can_extract: bool = False
    """Whether an extract takes the place of a summary that failed."""
    excluded: frozenset[Step] = frozenset()
    """Steps that the run leaves out."""
    load: Callable[[str], ExtraStrategy | None] = lambda _name: None
    """Returns an installed strategy by its name."""

    @property
    def is_one_step(self) -> bool:
        """Whether somebody asked for one step alone."""
        return self.strategy not in {None, "auto"}

    def without(self, steps: frozenset[Step]) -> RunContext:
        """Return the context of a run that leaves these steps out as well."""
        return replace(self, excluded=self.excluded | steps)

    def options(self, progress: Progress) -> StepOptions:
        """Return what a step is told besides the stage."""
        asked = self.strategy
        by_policy = asked is None or asked in STRATEGY_NAMES
        return StepOptions(
            by_hand=self.is_one_step,
            through=progress.read_through if progress.is_summarized else None,
            strategies=self.policy.extra_strategies if by_policy else (str(asked),),
            load=self.load,
        )


@dataclass(frozen=True)
class Progress:
    """What happened in a run so far."""

    results: Mapping[Step, Result] = field(default_factory=dict)
    """What became of each step that was taken."""
    read_through: int | None = None
    """Seq of the newest message when a summary was asked for; later messages are left to the next summary."""

    def after(self, step: Step, result: Result) -> Progress:
        """Return what happened with one more step."""
        return replace(self, results={**self.results, step: result})

    @property
    def summary(self) -> Result | None:
        """What became of the summary, None before it."""
        return next((done for step, done in self.results.items() if step.summarizer == "chosen"), None)

    @property
    def is_summarized(self) -> bool:
        """Whether a summary or an extract was committed."""
        return any(done == "committed" for step, done in self.results.items() if step.summarizer)

    @property
    def has_committed(self) -> bool:
        """Whether any step was committed."""
        return "committed" in self.results.values()

    @property
    def has_changed_nothing(self) -> bool:
        """Whether every step so far was skipped."""
        return all(done == "skipped" for done in self.results.values())


def next_step(context: RunContext, progress: Progress, load: Load, messages: int, newer: int = 0) -> Step | None:
    """Return the step that comes next, None at the end of the run.

    `load` and `messages` are what the conversation weighs now; `newer` of the messages came after those that a summary
    was made from.
    """
    results = progress.results
    if "pending" in results.values():
        return None
    if context.strategy is not None and context.is_one_step:
        step = step_of(context.strategy)
        return None if step in results or step in context.excluded else step
    moment = RunMoment(
        due := decide(load, context.policy),
        load,
        context.policy,
        by_hand=context.strategy is not None,
        can_summarize=context.can_summarize,
        can_extract=context.can_extract,
        summary=progress.summary,
        is_summarized=progress.is_summarized,
        messages=messages - newer,
        has_unread=newer > 0 and progress.is_summarized and due.summary,
    )
    return next(
        (step for step in LADDER if step not in results and step not in context.excluded and step.is_due(moment)), None
    )


def next_step_of_stage(context: RunContext, progress: Progress, stage: Stage, view: View | None = None) -> Step | None:
    """Return the step that comes next on a stage, or on the one that a commit of `view` would leave."""
    load = stage.load if view is None else stage.load_of(view)
    shown = stage.view if view is None else view
    newer = newer_messages(shown, progress.read_through)
    return next_step(context, progress, load, stage.count(shown[: len(shown) - newer]) + newer, newer)


class Ending(NamedTuple):
    """How a run ends, None for what its last step tells."""

    state: RunState | None = None
    reason: RunReason | None = None


def ending_of(context: RunContext, progress: Progress, *, has_failed: bool) -> Ending:
    """Return how a run ends; `has_failed` tells whether its summary failed."""
    substitutes = [step for step in progress.results if step.as_substitute is not None]
    if has_failed:
        done = (step.as_substitute for step in substitutes if progress.results[step] in {"committed", "pending"})
        return Ending(RunState.FAILED, next(done, RunReason.SUMMARY_FAILED_NOTHING_DROPPED))
    if any(step.drops for step in substitutes) and not context.is_one_step:
        return Ending(reason=RunReason.SUMMARIES_DISABLED)
    return Ending()
