"""Holds: how far a conversation has to grow before a check tries a step on it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from compaction.steps.catalogue import STEPS
from compaction.steps.ladder import cut_threshold, growth_margin, over_by_fixed
from compaction.steps.runs import RunReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.cost.swap import Bounds
    from compaction.policy import Policy

_VOID: Final = frozenset({RunReason.HEAD_MOVED, RunReason.WORKER_STOPPED, RunReason.LEASE_LOST})
"""Reasons of steps that do not tell whether another try would succeed."""
WAITING: Final = frozenset({RunReason.WAITS_FOR_TOOL_LOOP, RunReason.WAITS_UNTIL_IT_PAYS})
"""Reasons of steps whose snapshot is not in force yet."""


class EndedStep(Protocol):
    """A step of a run as it was written down."""

    name: Any
    reason: Any


class GrowthHold(NamedTuple):
    """Tokens that a conversation has to grow by before a step is tried on it again, if it has more than `above`."""

    growth: int
    above: int = -1
    share: float = 0.0
    """By this share of what it has at least."""
    most: int | None = None
    """Tokens of input at which it ends, however little has come; if there are fewer."""


class Holds(NamedTuple):
    """What a run holds back; None leaves a hold as it was."""

    tool_results: GrowthHold | None
    summary: GrowthHold | None
    trim: int | None
    """In bytes."""
    puts_off: bool
    """Whether a cut was put off until the next pause, so that no result counts as looked at."""


def holds_after(
    ended: Sequence[EndedStep], policy: Policy, *, bounds: Bounds | None = None, has_media: bool = False
) -> Holds:
    """Return what a run holds back after its steps.

    `bounds` are those of a pause. What failed there is not held back over a threshold, as none asked for it.
    """
    steps = [(step, each.reason) for each in ended if (step := STEPS.get(each.name)) is not None]

    def hold(kind: str, threshold: int, share: float, most: int) -> GrowthHold | None:
        own = [(step, reason) for step, reason in steps if step.hold == kind]
        reasons = {reason for _, reason in own}
        if reasons and reasons <= _VOID:
            return None
        # With nothing to cut, the next tool-result message makes this one old at once.
        found_nothing = all(reason == step.nothing for step, reason in own)
        at_once = found_nothing and any(step.renewed_by_results for step, _ in own)
        # A file in the first message leaves with a summary, and what its zone lacks comes with the next turn.
        at_once = at_once or (has_media and reasons == {RunReason.ZONE_TOO_SMALL})
        is_committed = None in reasons
        return GrowthHold(
            0 if at_once else growth_margin(threshold, policy),
            above=-1 if reasons else threshold,
            share=share if is_committed else 0,
            most=most if most > 0 and not is_committed else None,
        )

    budget, hard = (bounds.budget, bounds.hard) if bounds is not None else (0, 0)
    return Holds(
        tool_results=hold("tool_results", cut_threshold(policy), policy.tool_results_growth_ratio, budget),
        summary=hold("summary", policy.compaction_threshold_tokens, 0, hard),
        trim=policy.max_context_bytes // 10 if any(step.hold == "trim" for step, _ in steps) else None,
        puts_off=any(reason == RunReason.NOT_WORTH_IT_YET for _, reason in steps),
    )


def is_over_by_fixed(ended: Sequence[EndedStep], fixed_tokens: int, policy: Policy) -> bool:
    """Return whether a step was due that cannot get the input under its threshold, and never will."""
    over = over_by_fixed(fixed_tokens, policy)
    taken = filter(None, (STEPS.get(each.name) for each in ended))
    return any(step.threshold in over for step in taken)
