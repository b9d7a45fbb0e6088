"""Overflow: the model refused the prompt as too long, and the context has to shrink at once (requirement O8)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from compaction.media.limits import MediaLimits
from compaction.media.shedding import load_of_view, media_of, replace_media, shed_media
from compaction.pins.pinned import with_pins
from compaction.shorten.fitting import fit_history
from compaction.steps.refusal_wordings import MEDIA, Unit
from compaction.steps.snapshot import serialized_bytes
from compaction.view import WRITTEN, ViewMessage, cut_seqs, view_tokens, with_own_tail

if TYPE_CHECKING:
    from collections.abc import Callable

    from compaction.pins.pinned import Pin
    from compaction.policy import Policy
    from compaction.steps.refusals import Refusal
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
    `pins` are in the view's frame. `is_smaller` says whether it is smaller in the unit that was refused.
    """

    view: View
    estimated: int
    tokens: int
    served: int
    truncated: tuple[int, ...]
    dropped: int
    pins: tuple[Pin, ...]
    is_smaller: bool


def shrink(
    stage: Stage,
    policy: Policy,
    *,
    factor: float,
    overflows: int,
    refusal: Refusal | None,
    tries: int = 0,
    is_fitted: bool = True,
) -> Shrunk:
    """Return a view that is smaller than what was served of a conversation, in the unit that was refused.

    `factor` is what estimates are multiplied by; `overflows` counts those before this one without a turn between, and
    `tries` the smaller views that were refused as well and are in force nowhere. `is_fitted` says whether what was
    served had been fitted into the policy's budget; a gateway sends all that its client does.
    """
    view, carries_summary = stage.view, stage.carries_summary
    language, code = stage.working.language, stage.working.frame_code
    framed = with_pins(view, stage.working.snapshot.pins, language, code)
    frame = view_tokens(framed) - view_tokens(view)

    def weigh(message: ViewMessage) -> float:
        return message.tokens * factor

    fixed = math.ceil((stage.fixed_tokens + frame) * factor)
    room = policy.context_limit_tokens - fixed if is_fitted else math.inf
    handles = stage.working.handles
    served = fit_history(view, room, weigh, carries_summary=carries_summary, handles=handles)
    share = NEXT_SHARE if overflows else FIRST_SHARE
    if refusal is not None and refusal.unit in MEDIA:
        kept = _without_oldest_media(served.view, refusal, share * NEXT_SHARE**tries)
        is_smaller = kept != served.view
    elif refusal is not None and refusal.unit is not Unit.TOKENS:
        measure = _measure(refusal.unit)
        size = sum(map(measure, served.view))
        beside = 0 if refusal.size is None else max(0, refusal.size - size)
        target = _target(size, beside, share, refusal, tries)
        kept = served.view if refusal.unit is Unit.MESSAGES else _media_within(served.view, size, target)
        if sum(map(measure, kept)) > target / MARGIN:
            kept = fit_history(kept, target, measure, carries_summary=carries_summary, handles=handles).view
        is_smaller = sum(map(measure, kept)) < size
    else:
        target = _target(served.tokens, fixed, share, refusal, tries)
        fitted = fit_history(view, target, weigh, carries_summary=carries_summary, handles=handles)
        kept, is_smaller = fitted.view, fitted.tokens < served.tokens
    tokens = sum(math.ceil(weigh(message)) for message in kept)
    kept_seqs = {message.seq for message in kept}
    # Of what was saved, pins may take up a part, and never all.
    spare = max(0, int((served.tokens - tokens) / factor)) // 2
    pinned = stage.pinned(with_own_tail(view, kept), policy, room=frame + spare)
    added = view_tokens(with_pins(kept, pinned.framed, language, code)) - view_tokens(kept)
    return Shrunk(
        pinned.view,
        view_tokens(kept) + added,
        tokens + math.ceil(added * factor),
        served.tokens + math.ceil(frame * factor),
        tuple(cut_seqs(view, kept)),
        sum(message.seq not in kept_seqs for message in view if message.seq != WRITTEN),
        pinned.framed,
        is_smaller,
    )


def _measure(unit: Unit) -> Callable[[ViewMessage], int]:
    """Return what measures a message in a unit."""
    return _count_rows if unit is Unit.MESSAGES else serialized_bytes


def _without_oldest_media(view: View, refusal: Refusal, share: float) -> View:
    """Return `view` within a refusal's limit on media: the oldest become texts, and every word stays.

    If the error names no limit, or no medium is known to be over it, `share` of the images and pages stay.
    """
    media = media_of(view)
    if refusal.unit is Unit.IMAGE_AREA and refusal.limit is not None:
        sizes = ((medium, medium.facts.size) for medium in media)
        large = [each for each, size in sizes if size and size.width * size.height > refusal.limit]
        shed = replace_media(view, large)
    else:
        shed = shed_media(view, _media_limits(refusal))
    if shed.replaced:
        return shed.view
    load = load_of_view(view)
    count = load.document_pages if refusal.unit is Unit.PAGES else load.images
    kind = Unit.PAGES if refusal.unit is Unit.PAGES else Unit.IMAGES
    return shed_media(view, _media_limits(refusal._replace(unit=kind, limit=max(1, int(count * share))))).view


def _media_limits(refusal: Refusal) -> MediaLimits:
    """Return the limits that a refusal names."""
    limit = refusal.limit or 0
    match refusal.unit:
        case Unit.IMAGES_AND_PAGES:
            return MediaLimits(images=limit, document_pages=limit)
        case Unit.PAGES:
            return MediaLimits(document_pages=limit)
        case Unit.IMAGE_PIXELS:
            return MediaLimits(image_side=limit, side_from=1)
        case Unit.IMAGE_BYTES:
            return MediaLimits(image_bytes=limit)
    return MediaLimits(images=limit)


def _media_within(view: View, size: int, target: int) -> View:
    """Return `view`, which has `size` bytes, with as few media as `target` bytes leave room for beside its words."""
    media_bytes = load_of_view(view).bytes
    words = size - media_bytes
    return shed_media(view, MediaLimits(media_bytes=max(1, target - words))).view if media_bytes else view


def _count_rows(message: ViewMessage) -> int:
    """Return as how many messages or items one message is sent, at most: each call and result may be one."""
    if isinstance(message.content, str):
        return 1
    apart = sum(block.get("type") in {"tool_use", "tool_result"} for block in message.content)
    return apart + (apart < len(message.content))


def _target(served: int, fixed: int, share: float, refusal: Refusal | None, tries: int) -> int:
    """Return how much the history may have, in the unit that was refused; always less than it had.

    `fixed` is what the request has beside the history, `share` what is kept if the error has no numbers.
    """
    estimated = served + fixed
    limit = None if refusal is None else refusal.limit
    if refusal is not None and limit is not None and refusal.amount is not None:
        # In proportion, should the estimate be wrong; by the difference, should layers that are not history be large.
        # Where the two are far apart, the difference would leave next to nothing at the first try.
        room = scaled = estimated * limit / refusal.amount
        if refusal.unit is Unit.TOKENS:
            room = max(min(scaled, estimated - (refusal.amount - limit)), scaled * NEXT_SHARE)
        target = room * MARGIN - fixed
    else:
        target = served * share
        if limit is not None:
            # By estimate alone, so that large layers may leave little, and an estimate that is wrong not everything.
            least = served * limit / max(1, estimated) * NEXT_SHARE
            target = min(target, max(limit * MARGIN - fixed, least))
    return max(0, min(int(target * NEXT_SHARE**tries), served - 1))
