"""Overflow: the model refused the prompt as too long, and the context has to shrink at once (requirement O8)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from compaction.pins.pinned import with_pins
from compaction.shorten.fitting import fit_history
from compaction.view import WRITTEN, ViewMessage, cut_seqs, view_tokens, with_own_tail

if TYPE_CHECKING:
    from compaction.pins.pinned import Pin
    from compaction.policy import Policy
    from compaction.steps.refusals import Refused
    from compaction.steps.stage import Stage
    from compaction.view import View

MOST: Final = 3
"""Overflows in a row, without a turn between, after which nothing more is tried (requirement O8)."""
MARGIN: Final = 0.95
"""Share of the room that the model's own numbers leave: estimates of single messages are off by some percent."""
FIRST_SHARE: Final = 0.7
NEXT_SHARE: Final = 0.5
"""Shares of the context that are kept the first time and each further time, where the error has no numbers."""


class Shrunk(NamedTuple):
    """A smaller view and what it took.

    `tokens` are its estimate as it is served, `served` those of the context that was refused, `estimated` its tokens
    before any factor. `truncated` are the seqs of messages that were cut, `dropped` counts messages that are gone,
    `pins` are in the view's frame.
    """

    view: View
    estimated: int
    tokens: int
    served: int
    truncated: tuple[int, ...]
    dropped: int
    pins: tuple[Pin, ...]

    @property
    def is_smaller(self) -> bool:
        """Whether anything could be left out."""
        return self.tokens < self.served


def shrink(stage: Stage, policy: Policy, *, factor: float, overflows: int, refused: Refused | None) -> Shrunk:
    """Return a view strictly smaller than what was served of a conversation, or as small as it may be.

    `factor` is what estimates are multiplied by; `overflows` counts those before this one without a turn between.
    """
    view, carries_summary = stage.view, stage.carries_summary
    framed = with_pins(view, stage.working.snapshot.pins)
    frame = view_tokens(framed) - view_tokens(view)

    def weigh(message: ViewMessage) -> float:
        return message.tokens * factor

    fixed = math.ceil((stage.fixed_tokens + frame) * factor)
    # What was refused had been fitted into the budget before it was served.
    room = policy.context_limit_tokens - fixed
    handles = stage.working.handles
    served = fit_history(view, room, weigh, carries_summary=carries_summary, handles=handles).tokens
    target = _target(served, fixed, overflows, refused)
    fitted = fit_history(view, target, weigh, carries_summary=carries_summary, handles=handles)
    kept_seqs = {message.seq for message in fitted.view}
    # Of what was saved, pins may take up a part, and never all.
    spare = max(0, int((served - fitted.tokens) / factor)) // 2
    pinned = stage.pinned(with_own_tail(view, fitted.view), policy, room=frame + spare)
    added = view_tokens(with_pins(fitted.view, pinned.framed)) - view_tokens(fitted.view)
    return Shrunk(
        pinned.view,
        view_tokens(fitted.view) + added,
        fitted.tokens + math.ceil(added * factor),
        served + math.ceil(frame * factor),
        tuple(cut_seqs(view, fitted.view)),
        sum(message.seq not in kept_seqs for message in view if message.seq != WRITTEN),
        pinned.framed,
    )


def _target(served: int, fixed: int, overflows: int, refused: Refused | None) -> int:
    """Return the tokens that the history may have; always less than it had."""
    estimated = served + fixed
    if refused is not None and refused.tokens is not None:
        # In proportion, should the estimate be wrong; by the difference, should layers that are not history be large.
        # Where the two are far apart, the difference would leave next to nothing at the first try.
        share = estimated * refused.limit / refused.tokens
        room = max(min(share, estimated - (refused.tokens - refused.limit)), share * NEXT_SHARE)
        target = room * MARGIN - fixed
    else:
        target = served * (NEXT_SHARE if overflows else FIRST_SHARE)
        if refused is not None:
            # By estimate alone, so that large layers may leave little, and an estimate that is wrong not everything.
            least = served * refused.limit / max(1, estimated) * NEXT_SHARE
            target = min(target, max(refused.limit * MARGIN - fixed, least))
    return max(0, min(int(target), served - 1))
