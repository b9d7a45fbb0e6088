"""A context that has to be parsed: capped, stripped of stale thinking, repaired, and fitted into the budget."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from compaction.media.limits import limits_of, shed_warning
from compaction.media.shedding import shed_media
from compaction.payload.assembly import drop_warnings
from compaction.payload.history import build_history, describe_history
from compaction.pins.serving import fit_with_rules
from compaction.shorten.fitting import fit_history

if TYPE_CHECKING:
    from compaction.payload.stored_context import StoredContext
    from compaction.policy import Policy
    from compaction.shorten.fitting import FittedHistory
    from compaction.view import View


class FittedContext(NamedTuple):
    """A context that had to be parsed: to be capped, stripped of stale thinking, repaired, or fitted."""

    history: FittedHistory
    exchanges: int
    """Exchanges of the whole context."""
    fixed: int
    """Tokens of what is sent along with the history."""
    warnings: tuple[str, ...]

    @property
    def gave_way(self) -> bool:
        """Whether the guard had to leave out or cut anything."""
        fitted = self.history
        return bool(self.exchanges > fitted.kept or fitted.rounds_dropped or fitted.cut or fitted.media_replaced)


def fit_context(stored: StoredContext, policy: Policy) -> FittedContext:
    """Return a context within the budget and the limits on media."""
    working = build_history(stored, policy)
    about = describe_history(stored, working, policy)
    fixed = math.ceil(stored.fixed_tokens * stored.factor)
    shed = shed_media(working.view, limits_of(policy))
    fit = partial(
        fit_history,
        shed.view,
        weigh=lambda message: message.tokens * stored.factor,
        carries_summary=about.carries_summary,
        lacks_rounds=about.lacks_rounds,
        unread=about.unread,
        handles=about.handles,
    )
    room = policy.context_limit_tokens - fixed
    fitted = fit_with_rules(
        fit,
        room,
        shed.view,
        about.rules,
        factor=stored.factor,
        max_tokens=policy.pinned_max_tokens,
        is_part=about.is_part,
        frame_language=policy.frame_language,
        frame_code=about.frame_code,
    )
    shed_warnings = [shed_warning(shed.seqs)] if shed.replaced else []
    warnings = (*working.warnings, *shed_warnings, *drop_warnings(fitted, about.exchanges))
    return FittedContext(fitted, about.exchanges, fixed, warnings)


def count_head(view: View, stored: StoredContext) -> int:
    """Return how many messages of a view are the snapshot's: all before the first that came after it."""
    after = (at for at, message in enumerate(view) if message.seq > stored.covers_through)
    return next(after, len(view)) if stored.head_version else 0
