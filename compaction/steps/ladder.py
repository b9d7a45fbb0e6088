"""The ladder: what a check decides from a conversation's counters and its policy."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from compaction.media.limits import NO_MEDIA, MediaLoad, limits_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compaction.policy import Policy


BELIEVABLE_SHARE: Final = 4
"""A count below the estimate by more than this factor is none: the learned ratio is held within two, and estimates of
images and documents may be off by as much again. Clients that leave out cached tokens report far less."""


class Step(StrEnum):
    """The steps of the ladder, in order, and those that a model's refusal and a pin bring about."""

    TOOL_RESULTS = "tool_results"
    PRUNE = "prune"
    STRATEGIES = "strategies"
    MEDIA = "media"
    SUMMARY = "summary"
    EXTRACT = "extract"
    FALLBACK = "fallback"
    BACKSTOP = "backstop"
    TRIM = "trim"
    OVERFLOW = "overflow"
    PIN = "pin"


Strategy = Literal["auto", "tool_results", "prune", "summary", "extract", "drop", "trim"]
"""What a run by hand may ask for: the whole ladder, or one step of it. An extract is a summary without a model. Any
other name is that of an installed strategy."""
Result = Literal["committed", "pending", "skipped", "failed"]
"""What became of a step; a pending one waits for the end of a tool loop."""

BEFORE_SUMMARY: Final = (Step.TOOL_RESULTS, Step.PRUNE, Step.STRATEGIES)
"""The steps that come before the summary: whoever waits for a model has them behind them."""
_STEP_OF: Final[Mapping[str, Step]] = {
    "tool_results": Step.TOOL_RESULTS,
    "prune": Step.PRUNE,
    "summary": Step.SUMMARY,
    "extract": Step.SUMMARY,
    "drop": Step.FALLBACK,
    "trim": Step.TRIM,
}


class Load(NamedTuple):
    """What a conversation weighs, from its counters alone; in tokens but for `bytes`."""

    estimated: int
    """Estimate of the next call's input: system prompt, tools and the context as it is served."""
    measured: int | None
    """The API's count carried forward: input and output of the last call and the estimate of everything newer.
    None = no data, or made with another snapshot version."""
    stored: int | None = None
    """What is stored by the estimate alone, which nothing but growth changes: what holds are measured in. None =
    `estimated`."""
    is_counted: bool = True
    """Whether the API counted anything since the last request; before it has, the trim does not go by `measured`."""
    bytes: int = 0
    """Bytes of the context, serialized."""
    has_old_results: bool = True
    """Whether a tool-result message came since older ones were last checked."""
    tool_results_hold: int = 0
    """Tool results are not cut again until what is stored exceeds this."""
    summary_hold: int = 0
    """No summary is tried again until what is stored exceeds this."""
    trim_hold: int = 0
    """The trim is not tried again until the context exceeds this many bytes."""
    media: MediaLoad = NO_MEDIA
    """Images and files of the context. A check knows them if any came since a run looked at them."""

    @property
    def input_tokens(self) -> int:
        """The tokens the next call would send: the API's count where it is known, else the estimate."""
        return self.estimated if self.measured is None else self.measured

    def has_grown(self, hold: int) -> bool:
        """Tell whether what is stored is over a hold; one of 0 holds nothing."""
        return hold == 0 or (self.estimated if self.stored is None else self.stored) > hold


class Due(NamedTuple):
    """The steps that a conversation needs now."""

    tool_results: bool
    summary: bool
    trim: bool
    prune: bool = False
    media: bool = False

    def __bool__(self) -> bool:
        return any(self)


def decide(load: Load, policy: Policy) -> Due:
    """Return what is due. Both token thresholds are strict (requirements T1, S3); a budget of 0 is off."""
    tokens = load.input_tokens
    may_cut = load.has_old_results and load.has_grown(load.tool_results_hold)
    return Due(
        tool_results=may_cut and 0 < policy.input_token_budget < tokens,
        summary=tokens > policy.compaction_threshold_tokens and load.has_grown(load.summary_hold),
        trim=trim_is_due(load, policy),
        # Whether the tool results' own share is that large, only the messages tell.
        prune=may_cut and tokens > prune_threshold(policy),
        media=load.media.exceeds(limits_of(policy)),
    )


def next_step(
    tried: Mapping[Step, Result],
    load: Load,
    messages: int,
    policy: Policy,
    *,
    summaries: bool,
    extracts: bool = False,
    strategy: str | None = None,
    newer: int = 0,
) -> Step | None:
    """Return the step that comes after those that a run has tried, None when it is at its end.

    `load` and `messages` are what the conversation weighs after them; `newer` of the messages came while a summary was
    made. `summaries` tells whether summaries are on, and `extracts` whether an extract takes the place of one that
    failed. Without a strategy the thresholds decide. One step that was asked for by hand is taken whatever they say; so
    are the steps of `auto` up to the summary, but nothing is dropped below its threshold because a summary failed. What
    came while a summary was made is for the next one to read, and not for this run to drop.
    """
    if "pending" in tried.values():
        return None
    if strategy is not None and strategy != "auto":
        step = _STEP_OF.get(strategy, Step.STRATEGIES)
        return None if step in tried else step
    by_hand = strategy == "auto"
    due = decide(load, policy)
    summarized = "committed" in {tried.get(Step.SUMMARY), tried.get(Step.EXTRACT)}
    after_summary = messages - newer > policy.max_conversation_messages and summarized
    unread = newer > 0 and summarized and due.summary
    wanted = (
        (Step.TOOL_RESULTS, due.tool_results or (by_hand and policy.input_token_budget > 0)),
        (Step.PRUNE, due.prune or by_hand),
        (Step.STRATEGIES, bool(policy.extra_strategies) and (due.tool_results or due.summary or by_hand)),
        (Step.MEDIA, due.media),
        (Step.SUMMARY, summaries and (due.summary or by_hand)),
        # What is too new for a summary may have media that are too old to stay at that price.
        (Step.MEDIA, due.summary and load.media != NO_MEDIA and tried.get(Step.SUMMARY) == "skipped"),
        (Step.EXTRACT, extracts and (due.summary or by_hand) and tried.get(Step.SUMMARY) == "failed"),
        (Step.FALLBACK, due.summary and not summarized and tried.get(Step.SUMMARY, "failed") == "failed"),
        (Step.BACKSTOP, after_summary),
        (Step.TRIM, due.trim and not unread),
    )
    return next((step for step, is_wanted in wanted if is_wanted and step not in tried), None)


def strategy_names(strategy: str | None, policy: Policy) -> tuple[str, ...]:
    """Return the installed strategies that a run takes: the one that was asked for by hand, or the policy's."""
    return policy.extra_strategies if strategy is None or strategy in get_args(Strategy) else (strategy,)


def must_wait(tokens: float, policy: Policy, *, in_signed_loop: bool) -> bool:
    """Tell whether a new snapshot has to wait: the API refuses signed thinking whose prefix has changed.

    `tokens` are those of the next call. From the trim threshold on, or once they would be dropped for want of room, it
    cannot wait: there the thinking is left out.
    """
    return in_signed_loop and tokens < policy.pending_limit_tokens


def prune_threshold(policy: Policy) -> int:
    """Return the tokens that tool results have to be over, by themselves, to be pruned."""
    return int(policy.prune_soft_share * policy.model_context_tokens)


def cut_threshold(policy: Policy) -> int:
    """Return the tokens over which older tool results may be cut or pruned, 0 where they never are."""
    return min((each for each in (policy.input_token_budget, prune_threshold(policy)) if each > 0), default=0)


def trim_is_due(load: Load, policy: Policy) -> bool:
    """Tell whether the byte trim has to run (requirements K2 to K4).

    Without a count from the API, or with one that cannot be true, the bytes decide; with one below the threshold the
    trim is skipped, and nothing is serialized to find out; at or above it the bytes decide again.
    """
    measured = load.measured if load.is_counted else None
    if measured is not None and load.estimated / BELIEVABLE_SHARE <= measured < policy.trim_threshold_tokens:
        return False
    return load.bytes > max(policy.max_context_bytes, load.trim_hold)


def over_by_fixed(fixed_tokens: int, policy: Policy) -> tuple[str, ...]:
    """Return the keys of the thresholds that system prompt and tools alone are over: no step can get under these."""
    thresholds = {
        "compaction_threshold_tokens": policy.compaction_threshold_tokens,
        "input_token_budget": policy.input_token_budget,
    }
    return tuple(key for key, threshold in thresholds.items() if 0 < threshold < fixed_tokens)


def growth_margin(threshold: int, policy: Policy) -> int:
    """Return the tokens a conversation has to grow by before the same step is tried on it again.

    A fifth of the threshold keeps compactions few and large: each one breaks the prompt cache from the first message
    it changes.
    """
    return max(policy.min_savings_tokens, threshold // 5)


def saves_enough(before: int, after: int, policy: Policy) -> bool:
    """Tell whether going from `before` to `after` tokens is worth a new snapshot."""
    return after < before and before - after >= policy.min_savings_tokens
