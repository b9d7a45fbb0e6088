"""The steps of a run, each declared once: what it is called, when it is due, what it does, what follows from it.

Everything else reads them from here: the plan of a run, dry runs, holds, what waits until it pays, logs, docs and
benchmarks. A new step is a constant here and its place in LADDER.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from compaction.cost.depth import cut_depths
from compaction.media.limits import NO_MEDIA
from compaction.steps import steps
from compaction.steps.runs import RunReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from compaction.cost.depth import Depth
    from compaction.policy import Policy
    from compaction.steps.ladder import Due, Load
    from compaction.steps.stage import Stage
    from compaction.steps.steps import StepOptions, StepOutcome

Result = Literal["committed", "pending", "skipped", "failed"]
"""What became of a step; a pending one waits for the end of a tool loop."""


class RunMoment(NamedTuple):
    """The state of a run from which a step tells whether it is due."""

    due: Due
    """Thresholds that the conversation is over."""
    load: Load
    policy: Policy
    by_hand: bool
    """Whether somebody asked for the whole ladder."""
    can_summarize: bool
    can_extract: bool
    """Whether an extract takes the place of a summary that failed."""
    summary: Result | None
    """What became of the run's summary, None before it."""
    is_summarized: bool
    """Whether a summary or an extract was committed."""
    messages: int
    """Those of the context that the summary had to know of."""
    has_unread: bool
    """Whether messages came while the summary was made that the next one has to read."""


Act: TypeAlias = "Callable[[Stage, Policy, StepOptions], StepOutcome]"
"""A step that needs no summarizer, as a function."""


@dataclass(frozen=True, eq=False)
class Step:
    """A step of a run. Its defaults are those of a step that a request takes."""

    name: str
    """As records, metrics and snapshots have it."""
    when: str
    """When it is due, in words, for the table in docs/architecture.md."""
    does: str
    """What it does, in words, for the same table."""
    is_due: Callable[[RunMoment], bool] = lambda _moment: False
    act: Act | None = None
    """Returns what it makes of a stage; None for a step that needs a summarizer, and for those of requests."""
    summarizer: Literal["chosen", "extract"] | None = None
    """Which summarizer has to read the originals for it; the chosen one may ask a model."""
    strategies: tuple[str, ...] = ()
    """What a run by hand asks for to have this step alone."""
    event: str = ""
    """The log event of a commit."""
    drops: bool = False
    """Whether messages leave the context unread: its event is a warning."""

    hold: Literal["tool_results", "summary", "trim"] | None = None
    """The counter that keeps a check from trying it again at once."""
    threshold: Literal["input_token_budget", "compaction_threshold_tokens"] | None = None
    """The policy key that it answers, where a fixed input over that makes it useless."""
    nothing: RunReason | None = None
    """Its reason if there is nothing to do."""
    looks_at_results: bool = False
    """Whether it has checked every tool result afterwards."""
    renewed_by_results: bool = False
    """Whether the next tool result makes it due again at once, if there was nothing to do."""

    waits_until_it_pays: bool = False
    """Whether it answers a threshold of tokens, so that price may put it off. What answers a limit never waits."""
    depths: Callable[[Stage, Policy], Sequence[Depth]] | None = None
    """Returns where it may begin, for the cheapest place; None if it has no choice."""
    is_for_limits: bool = False
    """Whether only a limit or a failure asks for it: no pause does."""

    replaced_by_summary: bool = False
    """Whether a summary made later, from before this step, may take its place."""
    as_substitute: RunReason | None = None
    """The run's reason if this step took the place of a summary that failed."""

    def __str__(self) -> str:
        return self.name


def _results_are_due(moment: RunMoment) -> bool:
    return moment.due.tool_results or (moment.by_hand and moment.policy.input_token_budget > 0)


def _strategies_are_due(moment: RunMoment) -> bool:
    is_over = moment.due.tool_results or moment.due.summary or moment.by_hand
    return bool(moment.policy.extra_strategies) and is_over


def _media_are_due(moment: RunMoment) -> bool:
    # What is too new for a summary may have media that are too old to stay at that price.
    instead = moment.due.summary and moment.load.media != NO_MEDIA and moment.summary == "skipped"
    return moment.due.media or instead


def _is_over_threshold(moment: RunMoment) -> bool:
    return moment.due.summary or moment.by_hand


def _fallback_is_due(moment: RunMoment) -> bool:
    return moment.due.summary and not moment.is_summarized and moment.summary in {None, "failed"}


TOOL_RESULTS: Final = Step(
    name="tool_results",
    when="input tokens over `input_token_budget`",
    does="cuts older tool results to their first characters and a marker",
    is_due=_results_are_due,
    act=steps.cut_results,
    strategies=("tool_results",),
    event="tool_results.cut",
    hold="tool_results",
    threshold="input_token_budget",
    nothing=RunReason.NOTHING_TO_CUT,
    looks_at_results=True,
    renewed_by_results=True,
    waits_until_it_pays=True,
    depths=cut_depths,
    replaced_by_summary=True,
)
PRUNE: Final = Step(
    name="prune",
    when="tool results over `prune_soft_share` of the window",
    does="keeps head and tail of older results; over `prune_hard_share`, one line each",
    is_due=lambda moment: moment.due.prune or moment.by_hand,
    act=steps.prune_results,
    strategies=("prune",),
    event="tool_results.pruned",
    hold="tool_results",
    nothing=RunReason.NOTHING_TO_PRUNE,
    looks_at_results=True,
    waits_until_it_pays=True,
    replaced_by_summary=True,
)
STRATEGIES: Final = Step(
    name="strategies",
    when="`extra_strategies` names some, and tool results or a summary are due",
    does="runs strategies of other packages, which shorten or leave out messages",
    is_due=_strategies_are_due,
    act=steps.apply_strategies,
    event="strategies.taken",
    hold="tool_results",
    nothing=RunReason.NOTHING_TO_SHORTEN,
    waits_until_it_pays=True,
    replaced_by_summary=True,
)
MEDIA: Final = Step(
    name="media",
    when=(
        "more images, pages or bytes of media than the model takes; "
        "or a summary is due and nothing is old enough for one"
    ),
    does="replaces the oldest by texts that name them",
    is_due=_media_are_due,
    act=steps.replace_oldest_media,
    event="media.shed",
    nothing=RunReason.NOTHING_TO_DROP,
    is_for_limits=True,
    replaced_by_summary=True,
)
SUMMARY: Final = Step(
    name="summary",
    when="tokens over `compaction_threshold_tokens`",
    does="replaces the zone between the first message and the protected tail by a summary",
    is_due=lambda moment: moment.can_summarize and _is_over_threshold(moment),
    summarizer="chosen",
    strategies=("summary", "extract"),
    event="summary.committed",
    hold="summary",
    threshold="compaction_threshold_tokens",
    nothing=RunReason.ZONE_TOO_SMALL,
    waits_until_it_pays=True,
)
EXTRACT: Final = Step(
    name="extract",
    when="the summary failed",
    does="the same with an extract of the original wording",
    is_due=lambda moment: moment.can_extract and _is_over_threshold(moment) and moment.summary == "failed",
    summarizer="extract",
    event="summary.committed",
    hold="summary",
    threshold="compaction_threshold_tokens",
    nothing=RunReason.ZONE_TOO_SMALL,
    waits_until_it_pays=True,
    is_for_limits=True,
    replaced_by_summary=True,
    as_substitute=RunReason.SUMMARY_FAILED_EXTRACT_COMMITTED,
)
FALLBACK: Final = Step(
    name="fallback",
    when="a summary is due, but disabled, or neither it nor an extract could be had",
    does=("drops the oldest exchanges, then the oldest rounds of the last one, down to `max_conversation_messages`"),
    is_due=_fallback_is_due,
    act=steps.drop_oldest_exchanges,
    strategies=("drop",),
    event="context.dropped",
    drops=True,
    hold="summary",
    threshold="compaction_threshold_tokens",
    nothing=RunReason.NOTHING_TO_DROP,
    is_for_limits=True,
    as_substitute=RunReason.SUMMARY_FAILED_FALLBACK_COMMITTED,
)
BACKSTOP: Final = Step(
    name="backstop",
    when="after a summary, too many messages are left",
    does="the same, to the same number",
    is_due=lambda moment: moment.is_summarized and moment.messages > moment.policy.max_conversation_messages,
    act=steps.drop_oldest_exchanges,
    event="context.dropped",
    drops=True,
    hold="summary",
    threshold="compaction_threshold_tokens",
    nothing=RunReason.NOTHING_TO_DROP,
    replaced_by_summary=True,
)
TRIM: Final = Step(
    name="trim",
    when="over `max_context_bytes`, unless the API's count is under the threshold",
    does="drops the oldest exchanges, as few as it takes",
    is_due=lambda moment: moment.due.trim and not moment.has_unread,
    act=steps.trim_bytes,
    strategies=("trim",),
    event="context.dropped",
    drops=True,
    hold="trim",
    nothing=RunReason.NOTHING_TO_DROP,
)
LADDER: Final = (TOOL_RESULTS, PRUNE, STRATEGIES, MEDIA, SUMMARY, EXTRACT, FALLBACK, BACKSTOP, TRIM)
"""The steps of a run, from the cheapest to the last resort."""

OVERFLOW: Final = Step(
    name="overflow",
    when="the model refused the context as too long",
    does="makes it smaller within the request",
)
PIN: Final = Step(
    name="pin",
    when="a pinned text is not in the context",
    does="puts it back within the request",
    replaced_by_summary=True,
)
OF_REQUESTS: Final = (OVERFLOW, PIN)
"""The steps that a request takes by itself."""

STEPS: Final = {step.name: step for step in (*LADDER, *OF_REQUESTS)}
STRATEGY_NAMES: Final = ("auto", *(name for step in LADDER for name in step.strategies))
"""What a run by hand may ask for: the whole ladder, or one step of it. An extract is a summary without a model. Any
other name is that of an installed strategy."""
BEFORE_SUMMARY: Final = frozenset(step for step in LADDER if step.hold == "tool_results")
"""The steps that come before the summary: a run that waits for a model has them behind it."""


def step_of(strategy: str) -> Step:
    """Return the step that a run by hand asks for by this name."""
    return next((step for step in LADDER if strategy in step.strategies), STRATEGIES)
