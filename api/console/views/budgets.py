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
    """A context's tokens against the next threshold; shares are of `limit`, 1 = full."""

    tokens: int
    limit: int
    label: str
    share: float
    marks: Sequence[Line]

    @property
    def level(self) -> str:
        """How it stands: `calm`, `near` (from 85 %) or `over`."""
        return "over" if self.share > 1 else "near" if self.share >= _NEAR else "calm"


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
    """Return how full a context is: against the summary's threshold, or the total budget where that is lower."""
    limit = min(policy.compaction_threshold_tokens, policy.total_token_budget)
    label = "summary due" if limit == policy.compaction_threshold_tokens else "total budget"
    return Fill(tokens, limit, label, tokens / limit, [line for line in lines(policy) if line.tokens < limit])
