"""The guard: history that fits into what the other layers leave (seed 001)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compaction.messages import is_request, result_text_chars
from compaction.pins import only_frames
from compaction.repair import repair
from compaction.trimming import Trim, drop_oldest, exchanges, rounds
from compaction.view import MARKER, View, ViewMessage, map_blocks, signed_summary, strip_thinking, truncate_result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LEVELS: Final = (40_000, 20_000, 10_000, 5_000, 2_000, 1_000, 500)
"""Characters that long responses and results are cut to, the first that makes the history fit."""


class Fitted(NamedTuple):
    """History within its room, or as near to it as may be; `tokens` are estimates."""

    view: View
    tokens: int
    kept: int
    """Exchanges that are left."""
    cut: int
    """Responses and results that were cut."""
    rounds_dropped: bool
    """Whether older rounds of the last exchange were left out."""
    opening_dropped: bool = False
    """Whether of a first message with a summary only the summary is left."""


def fit_history(
    view: Sequence[ViewMessage],
    room: int,
    weigh: Callable[[ViewMessage], float],
    *,
    carries_summary: bool,
    lacks_rounds: bool = False,
) -> Fitted:
    """Return `view` within `room` tokens.

    The oldest whole exchanges go first, then the oldest rounds of the last one; its request and newest round stay, and
    so does a first message with a summary. Where that one leaves no room for them, only its summary stays, and more of
    the others. If that is not enough, long responses and results are cut to their start. What is left may still be
    over: the caller warns. A larger room never leaves less but for this first message's sake. With `lacks_rounds` the
    view holds only the newest rounds of its last exchange already.
    """

    def drop(whole: Sequence[ViewMessage]) -> Trim:
        return drop_oldest(
            whole,
            lambda _, measured: measured <= room,
            measure=lambda message: _ceil(weigh(message)),
            carries_summary=carries_summary,
        )

    trim, opening = drop(view), None
    if carries_summary and _tokens(trim.view, weigh) > room and (opening := _only_summary(view)) is not None:
        trim = drop((opening, *view[1:]))
    kept, cut = trim.view, 0
    if _tokens(kept, weigh) > room:
        for level in LEVELS:
            shorter, cut = cut_long(trim.view, level)
            kept = shorter
            if _tokens(kept, weigh) <= room:
                break
    if kept != tuple(view):
        kept = strip_thinking(kept, _last_seq(view), from_index=_first_change(view, kept))
        kept, _ = repair(kept)
    gone = set(trim.dropped)
    dropped = lacks_rounds or (bool(gone) and any(part.start in gone for part in rounds(view, exchanges(view)[-1])))
    return Fitted(kept, _tokens(kept, weigh), count_exchanges(kept), cut, dropped, opening is not None)


def _only_summary(view: Sequence[ViewMessage]) -> ViewMessage | None:
    """Return the first message without its own words, None where these are asked for still, or there are none."""
    if not view or signed_summary(view) is not None or exchanges(view)[-1].start == 0:
        return None
    return only_frames(view[0])


def count_exchanges(view: Sequence[ViewMessage]) -> int:
    """Return how many requests a view has."""
    return sum(is_request(message.role, message.content) for message in view)


def cut_long(view: Sequence[ViewMessage], level: int) -> tuple[View, int]:
    """Cut assistant texts and tool results to their first `level` characters; return how many were.

    What was cut before may be cut further; what the marker would make no shorter stays as it is.
    """
    count = 0

    def cut(block: dict[str, Any]) -> dict[str, Any]:
        nonlocal count
        shorter: dict[str, Any] | None = None
        if block.get("type") == "tool_result":
            shorter = truncate_result(block, level, lambda _: MARKER)
            if shorter is not None and result_text_chars(shorter) >= result_text_chars(block):
                shorter = None
        elif block.get("type") == "text":
            text = _cut_text(block["text"], level)
            shorter = None if text is None else {**block, "text": text}
        count += shorter is not None
        return shorter or block

    def cut_message(message: ViewMessage) -> ViewMessage:
        nonlocal count
        if message.role == "user":
            return map_blocks(message, lambda block: cut(block) if block.get("type") == "tool_result" else block)
        if isinstance(message.content, str):
            text = _cut_text(message.content, level)
            count += text is not None
            return message if text is None else message.with_content(text)
        return map_blocks(message, cut)

    return tuple(cut_message(message) for message in view), count


def _cut_text(text: str, level: int) -> str | None:
    shorter = text[:level] + MARKER
    return shorter if len(shorter) < len(text) else None


def _tokens(view: Sequence[ViewMessage], weigh: Callable[[ViewMessage], float]) -> int:
    return sum(_ceil(weigh(message)) for message in view)


def _ceil(value: float) -> int:
    return -int(-value // 1)


def _last_seq(view: Sequence[ViewMessage]) -> int:
    return max((message.seq for message in view), default=-1)


def _first_change(before: Sequence[ViewMessage], after: Sequence[ViewMessage]) -> int:
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        if old is not new:
            return index
    return min(len(before), len(after))
