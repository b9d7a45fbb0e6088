"""After an overflow: a summary of what was left out, in a context no larger than the one that the model took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from compaction.messages import is_request
from compaction.shorten.fitting import fit_history
from compaction.steps import steps
from compaction.view import WRITTEN, cut_seqs

if TYPE_CHECKING:
    from compaction.claims.claim import Claim
    from compaction.policy import Policy
    from compaction.steps.snapshot import NewSnapshot
    from compaction.steps.stage import Stage
    from compaction.summary.zone import Zone
    from compaction.view import View, ViewMessage

SUMMARY_SHARE: Final = 2
"""A summary may fill this part of the room, whatever the policy says."""
LEAST_SUMMARY_TOKENS: Final = 64
"""The least that `summary_max_tokens` may be."""


class Recovered(NamedTuple):
    """The snapshot to write, the view it gives and its estimated tokens."""

    new: NewSnapshot
    view: View
    tokens: int


def room_policy(policy: Policy, target_tokens: int) -> Policy:
    """Return the policy with summaries that leave room for something besides them."""
    most = max(LEAST_SUMMARY_TOKENS, target_tokens // SUMMARY_SHARE)
    return policy if policy.summary_max_tokens <= most else replace(policy, summary_max_tokens=most)


def find_zone(stage: Stage, policy: Policy, target_tokens: int) -> Zone | str:
    """Return the zone to summarize so that what stays fits with the summary, or the reason why there is none.

    The protected tail gives way down to the last request, if it holds that.
    """
    requests = [index for index, message in enumerate(stage.view) if is_request(message.role, message.content)]
    last = requests[-1] if requests else 0
    tail = min(stage.protected_tail(policy), len(stage.view))
    least = len(stage.view) - last if last >= len(stage.view) - tail else 1
    zone = steps.find_zone(stage, policy, tail)
    while tail > least and _left(stage, zone) + policy.summary_max_tokens > target_tokens:
        tail -= 1
        zone = steps.find_zone(stage, policy, tail)
    return zone


def recover(
    stage: Stage,
    zone: Zone,
    summary: str,
    policy: Policy,
    *,
    claims: tuple[Claim, ...] | None = None,
    read_through: int = WRITTEN,
    target_tokens: int,
    run_id: str,
) -> Recovered | None:
    """Return the view with `summary` in the place of the zone, within `target_tokens`; None if that cannot be had.

    `read_through` is the seq of the newest message that the summary was made from.

    Where the summary is not enough, the oldest of what stayed is dropped, then long responses and results are cut.
    """
    outcome = steps.summarize(stage, zone, summary, policy, claims, read_through=read_through)
    new = outcome.settle(stage, run_id)
    after = stage.after(new, policy)
    if after.tokens > target_tokens:

        def weigh(message: ViewMessage) -> float:
            return message.tokens * stage.token_ratio

        frame = after.tokens - after.estimate(after.view)
        fitted = fit_history(
            after.view, target_tokens - frame, weigh, carries_summary=True, handles=after.working.handles
        )
        cut = steps.StepOutcome(fitted.view, truncated=tuple(cut_seqs(after.view, fitted.view)))
        new = steps.with_frame(cut, after, policy).settle(after, run_id)
        after = after.after(new, policy)
    if after.tokens > target_tokens or after.tokens >= stage.tokens:
        return None
    return Recovered(new, after.view, after.tokens)


def _left(stage: Stage, zone: Zone | str) -> int:
    if isinstance(zone, str):
        return stage.tokens
    return stage.estimate((*stage.view[: zone.start], *stage.view[zone.stop :]))
