"""The ladder: what a check decides from a conversation's counters and its policy."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from compaction.policy import Policy


class Step(StrEnum):
    """The steps of the ladder, in order."""

    TOOL_RESULTS = "tool_results"
    SUMMARY = "summary"
    FALLBACK = "fallback"
    BACKSTOP = "backstop"
    TRIM = "trim"


class Load(NamedTuple):
    """What a conversation weighs, from its counters alone; in tokens but for `bytes`."""

    estimated: int
    """Estimate of the next call's input: system prompt, tools and the context as it is served."""
    measured: int | None
    """The API's count carried forward: input and output of the last call and the estimate of everything newer.
    None = no data, or made with another snapshot version."""
    bytes: int = 0
    """Bytes of the context, serialized."""
    has_old_results: bool = True
    """Whether a tool-result message came since older ones were last looked at."""
    tool_results_hold: int = 0
    """Tool results are not cut again until the input exceeds this."""
    summary_hold: int = 0
    """No summary is tried again until the input exceeds this."""
    trim_hold: int = 0
    """The trim is not tried again until the context exceeds this many bytes."""

    @property
    def input_tokens(self) -> int:
        """The tokens the next call would send: the API's count where it is known, else the estimate."""
        return self.estimated if self.measured is None else self.measured


class Due(NamedTuple):
    """The steps that a conversation needs now."""

    tool_results: bool
    summary: bool
    trim: bool

    def __bool__(self) -> bool:
        return self.tool_results or self.summary or self.trim


def decide(load: Load, policy: Policy) -> Due:
    """Return what is due. Both token thresholds are strict (seeds 000, 003); a budget of 0 is off."""
    tokens = load.input_tokens
    return Due(
        tool_results=policy.input_token_budget > 0
        and load.has_old_results
        and tokens > max(policy.input_token_budget, load.tool_results_hold),
        summary=tokens > max(policy.compaction_threshold_tokens, load.summary_hold),
        trim=trim_is_due(load, policy),
    )


def trim_is_due(load: Load, policy: Policy) -> bool:
    """Tell whether the byte trim has to run (seed 004, R2).

    Without a count from the API the bytes decide; with one below the threshold the trim is skipped, and nothing is
    serialized to find out; at or above it the bytes decide again.
    """
    if load.measured is not None and load.measured < policy.trim_threshold_tokens:
        return False
    return load.bytes > max(policy.max_context_bytes, load.trim_hold)


def growth_margin(threshold: int, policy: Policy) -> int:
    """Return the tokens a conversation has to grow by before the same step is tried on it again.

    A fifth of the threshold keeps compactions few and large: each one breaks the prompt cache from the first message
    it changes.
    """
    return max(policy.min_savings_tokens, threshold // 5)


def saves_enough(before: int, after: int, policy: Policy) -> bool:
    """Tell whether going from `before` to `after` tokens is worth a new snapshot."""
    return after < before and before - after >= policy.min_savings_tokens
