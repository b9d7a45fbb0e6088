"""Tokens against the policy: how full a context is, and where its thresholds are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.policy import Policy


class Line(NamedTuple):
    """A threshold: its policy key, what it is called, and its tokens."""

    key: str
    label: str
    tokens: int


class Fill(NamedTuple):
    """A context's tokens against the next threshold above them; shares are of `limit`, 1 = full."""

    tokens: int
    limit: int
    label: str
    share: float
    marks: Sequence[Line]
    """The thresholds below the next one: those that the context has passed."""
    is_over: bool
    """Whether the context is over the summary's threshold or over the total budget."""

    @property
    def level(self) -> str:
        """How it stands: `calm`, `near` (from 85 %) or `over`."""
        return "over" if self.is_over else "near" if self.share >= _NEAR else "calm"


_NEAR = 0.85


def lines(policy: Policy) -> list[Line]:
    """Return the thresholds of a policy in tokens, lowest first; what is off has none."""
    thresholds = [
        Line("compaction_threshold_tokens", "summary due", policy.compaction_threshold_tokens),
        Line("total_token_budget", "total budget", policy.total_token_budget),
    ]
    if policy.input_token_budget:
        thresholds.append(Line("input_token_budget", "tool results cut", policy.input_token_budget))
    return sorted(thresholds, key=lambda line: line.tokens)


def fill(tokens: int, policy: Policy) -> Fill:
    """Return how full a context is against the next threshold, or against the highest if it is over all of them."""
    thresholds = lines(policy)
    following = next((line for line in thresholds if tokens <= line.tokens), thresholds[-1])
    passed = [line for line in thresholds if line.tokens < following.tokens]
    is_over = tokens > min(policy.compaction_threshold_tokens, policy.total_token_budget)
    return Fill(tokens, following.tokens, following.label, tokens / following.tokens, passed, is_over)
