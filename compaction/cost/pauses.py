"""Compaction in a pause: the prompt cache has expired, so a shorter context rewrites nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from compaction.steps.ladder import cut_threshold, decide, growth_margin

if TYPE_CHECKING:
    from compaction.policy import Policy
    from compaction.steps.ladder import Load

EASE: Final = 0.75
"""Share by which a pause lowers the growth required before a step is tried again: without a warm prefix, smaller steps
are worthwhile."""


def pause_policy(policy: Policy) -> Policy:
    """Return the policy for a pause, whose thresholds are multiplied by the early share."""
    return replace(
        policy,
        input_token_budget=int(policy.input_token_budget * policy.pause_threshold_ratio),
        compaction_threshold_tokens=max(1, policy.pause_threshold_tokens),
    )


@dataclass(frozen=True)
class Pause:
    """Steps that are due in a pause: those that free room, but none that only drop messages."""

    policy: Policy

    @cached_property
    def early_policy(self) -> Policy:
        """The policy with the thresholds of a pause."""
        return pause_policy(self.policy)

    @cached_property
    def least_tokens(self) -> int:
        """Tokens up to which nothing is due."""
        early = self.early_policy
        return min(each for each in (cut_threshold(early), early.compaction_threshold_tokens) if each > 0)

    def is_due(self, load: Load) -> bool:
        """Return whether a step is due."""
        if load.input_tokens <= self.least_tokens:
            return False
        early = self.early_policy
        due = decide(
            load._replace(
                tool_results_hold=self._lower_hold(load.tool_results_hold, cut_threshold(early)),
                summary_hold=self._lower_hold(load.summary_hold, early.compaction_threshold_tokens),
            ),
            early,
        )
        return due.tool_results or due.prune or (due.summary and early.compaction_enabled)

    def _lower_hold(self, hold: int, threshold: int) -> int:
        """Return a hold lowered for a pause. It never becomes 0, which would disable it."""
        return hold and max(1, hold - int(EASE * growth_margin(threshold, self.early_policy)))
