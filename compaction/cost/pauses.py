"""What a pause is used for: the prompt cache is gone, so that a shorter context costs nothing to put in its place."""

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
"""Share of what a conversation has to grow by before a step is tried again that a pause lets it off: smaller steps are
worth their while where no prefix is broken."""


def ahead(policy: Policy) -> Policy:
    """Return the policy that holds in a pause: its thresholds are the share from which work is done ahead of time."""
    return replace(
        policy,
        input_token_budget=int(policy.input_token_budget * policy.pause_threshold_ratio),
        compaction_threshold_tokens=max(1, policy.pause_threshold_tokens),
    )


@dataclass(frozen=True)
class Pause:
    """What is due under a policy once the cache is gone: steps that make room, and none that only drop messages."""

    policy: Policy

    @cached_property
    def early(self) -> Policy:
        """The policy with the thresholds of a pause."""
        return ahead(self.policy)

    @cached_property
    def least(self) -> int:
        """Tokens up to which nothing is due."""
        early = self.early
        return min(each for each in (cut_threshold(early), early.compaction_threshold_tokens) if each > 0)

    def is_due(self, load: Load) -> bool:
        """Tell whether anything is due."""
        if load.input_tokens <= self.least:
            return False
        early = self.early
        due = decide(
            load._replace(
                tool_results_hold=self._eased(load.tool_results_hold, cut_threshold(early)),
                summary_hold=self._eased(load.summary_hold, early.compaction_threshold_tokens),
            ),
            early,
        )
        return due.tool_results or due.prune or (due.summary and early.compaction_enabled)

    def _eased(self, hold: int, threshold: int) -> int:
        """Return a hold that a pause lets pass; one of 0 holds nothing, so that none becomes that."""
        return hold and max(1, hold - int(EASE * growth_margin(threshold, self.early)))
