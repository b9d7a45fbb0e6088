"""The guard: history that fits into what the other layers leave, and fills it (requirements P5, P6)."""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import partial
from operator import is_not
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from compaction.media.shedding import media_of, replace_media
from compaction.messages import is_request, tool_use_ids
from compaction.pins.pinned import only_frames
from compaction.recall.handles import NO_HANDLE
from compaction.repair import repair
from compaction.shorten.recalled import recalled_lines
from compaction.shorten.shortening import result_without_middle, text_of, without_middle
from compaction.shorten.trimming import drop_oldest, exchanges, last_answer, rounds
from compaction.summary.zone import opening_length, preamble_length
from compaction.view import MARKER, WRITTEN, View, ViewMessage, map_blocks, signed_summary, strip_thinking

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from compaction.media.shedding import Medium
    from compaction.messages import Block
    from compaction.recall.handles import Handle, Handles

LEAST_CHARS: Final = 500
"""Characters that are always left of a text that has to be shortened, three quarters of them from its beginning."""
_MOST_CHARS: Final = 8
"""Characters that a unit of room may stand for at most: four a token, and the learned ratio is held within two."""


class Fitted(NamedTuple):
    """History within its room, or as near to it as may be; `tokens` are estimates."""

    view: View
    tokens: int
    kept: int
    """Exchanges that are left."""
    cut: int
    """Answers, results and earlier requests that lost their middle."""
    rounds_dropped: bool
    """Whether older rounds of the last exchange were left out."""
    opening_dropped: bool = False
    """Whether of a first message with a summary only the summary is left."""
    left_out: tuple[int, ...] = ()
    """Seqs of the messages that are gone."""
    media_replaced: int = 0
    """Images and files that gave way to texts, of the messages that are left."""


def fit_history(
    view: Sequence[ViewMessage],
    room: float,
    weigh: Callable[[ViewMessage], float],
    *,
    carries_summary: bool,
    asked: ViewMessage | None = None,
    lacks_rounds: bool = False,
    unread: Sequence[int] = (),
    handles: Handles | None = None,
) -> Fitted:
    """Return `view` within `room`, in the unit of `weigh`, with as little left out as that takes.

    What recall gave back goes first, the oldest first, each result to a line that names it; the newest results stay.
    Then the oldest images and files become texts that name them; those that nobody has answered yet stay for now. Then
    the oldest whole exchanges go, then the oldest rounds of the last answered one; its request and newest round stay,
    as do what nobody has answered yet and a first message with a summary. Where that one leaves no room for them, only
    its summary stays, and more of the others. If that is not enough, long answers and results lose as much of their
    middle as they have to, then requests that others follow; then all media but the newest message's become texts, and
    at last the oldest of the requests that nobody has answered go. What is left may still be over: the caller warns.
    A larger room never leaves less but for this first message's sake. `asked` is what will follow the history, its room
    already taken off. `unread` are seqs of messages that were left out of the view because they would not fit, with
    `lacks_rounds` older rounds of its last exchange among them. With `handles` the notes of what is cut say how to have
    it back.
    """
    whole = tuple(view) if asked is None else (*view, asked)

    def size(message: ViewMessage) -> int:
        return 0 if message is asked else math.ceil(weigh(message))

    def fits(_: int, measured: int) -> bool:
        return measured <= room

    def drop(whole: Sequence[ViewMessage], *, waiting: bool) -> View:
        return drop_oldest(whole, fits, measure=size, carries_summary=carries_summary, waiting=waiting).view

    given = whole
    whole, cuts = _without_recalled(whole, room, size, carries_summary=carries_summary)
    whole = without_oldest_media(whole, room, size, newest_media(whole))
    kept, opening = drop(whole, waiting=False), None
    if carries_summary and _total(kept, size) > room and (opening := _only_summary(whole)) is not None:
        first = preamble_length(whole)
        kept = drop((*whole[:first], opening, *whole[first + 1 :]), waiting=False)
    if _total(kept, size) > room:
        opened = opening_length(kept, carries_summary=carries_summary)
        kept, cuts = _shortened(kept, room, size, opened, cuts, handles)
        kept = without_oldest_media(kept, room, size, {len(kept) - 1})
        kept = drop(kept, waiting=True)
    cut = sum(cuts.get(id(message), 0) for message in kept)
    kept_seqs = {message.seq for message in kept}
    if kept != given:
        kept = strip_thinking(kept, _last_seq(view), from_index=_first_change(given, kept))
        kept, _ = repair(kept if asked is None else kept[:-1])
    elif asked is not None:
        kept = kept[:-1]
    gone = tuple(message.seq for message in view if message.seq not in kept_seqs)
    rounds_dropped = lacks_rounds or _lost_rounds(view, set(gone))
    tokens, exchanges_kept = _total(kept, size), count_exchanges(kept)
    media = len(media_of([message for message in view if message.seq in kept_seqs])) - len(media_of(kept))
    return Fitted(
        kept, tokens, exchanges_kept, cut, rounds_dropped, opening is not None, (*unread, *gone), max(0, media)
    )


def _lost_rounds(view: Sequence[ViewMessage], gone: set[int]) -> bool:
    """Tell whether rounds of an exchange are gone whose request is still there."""
    parts = exchanges(view)
    return bool(gone and parts) and any(view[part.start].seq in gone for part in rounds(view, parts[-1])[:-1])


def _only_summary(view: Sequence[ViewMessage]) -> ViewMessage | None:
    """Return the first message without its own words, None where these are asked for still, or there are none."""
    first = preamble_length(view)
    if not view or signed_summary(view) is not None or _last_request(view) <= first:
        return None
    return only_frames(view[first])


def count_exchanges(view: Sequence[ViewMessage]) -> int:
    """Return how many requests a view has."""
    return sum(is_request(message.role, message.content) for message in view)


def _without_recalled(
    view: View, room: float, size: Callable[[ViewMessage], int], *, carries_summary: bool
) -> tuple[View, dict[int, int]]:
    """Return `view` with as many of recall's results cut, oldest first, as its room asks for; and how many were.

    They are counted by the id of the message that they are in.
    """
    total = _total(view, size)
    if total <= room:
        return view, {}
    shorter = list(view)
    cuts: dict[int, int] = {}
    for (index, place), line in recalled_lines(view, opening_length(view, carries_summary=carries_summary)):
        before = shorter[index]
        shorter[index] = map_blocks(before, partial(_in_place, cast("Block", view[index].content[place]), line))
        cuts[id(shorter[index])] = cuts.pop(id(before), 0) + 1
        total += size(shorter[index]) - size(before)
        if total <= room:
            break
    return tuple(shorter), cuts


def newest_media(view: View) -> set[int]:
    """Return the messages whose media go last: what nobody has answered; in a loop its request and newest round."""
    if not view or (view[-1].role == "assistant" and not tool_use_ids(view[-1].content)):
        return set()
    answer = last_answer(view)
    if is_request(view[-1].role, view[-1].content):
        return set(range(answer + 1, len(view)))
    return {_last_request(view), *range(max(0, answer), len(view))}


def without_oldest_media(view: View, room: float, size: Callable[[ViewMessage], int], spared: Container[int]) -> View:
    """Return `view` with as many media replaced by texts, oldest first, as its room asks for.

    Messages in `spared` keep theirs, as do those that a text would make no smaller.
    """
    over = _total(view, size) - room
    if over <= 0:
        return view
    chosen: list[Medium] = []
    for medium in media_of(view):
        if medium.message in spared:
            continue
        message = view[medium.message]
        saved = size(message) - size(replace_media((message,), [medium._replace(message=0)]).view[0])
        if saved > 0:
            chosen.append(medium)
            over -= saved
        if over <= 0:
            break
    return replace_media(view, chosen).view


def _in_place(old: Block, new: dict[str, Any], block: dict[str, Any]) -> dict[str, Any]:
    return new if block is old else block


def _shortened(
    view: View,
    room: float,
    size: Callable[[ViewMessage], int],
    opening: int,
    cuts: Mapping[int, int],
    handles: Handles | None,
) -> tuple[View, dict[int, int]]:
    """Return `view` with long texts cut until it fits, answers and results, then older requests; and how many were.

    The texts are counted by the id of the message that they are in. The first `opening` messages stay as they are, and
    so does what was asked last. `cuts` were made before.
    """
    asked_last = _last_request(view)
    shorter = view
    for cut, end in (
        (partial(_cut_answer, handles=handles), len(view)),
        (partial(_cut_request, handles=handles), asked_last),
    ):
        shorter = (
            *shorter[:opening],
            *_filled(shorter, range(opening, end), cut, room, size),
            *shorter[max(opening, end) :],
        )
        if _total(shorter, size) <= room:
            break
    return shorter, {
        id(new): cuts.get(id(old), 0) + _blocks_changed(old, new) for old, new in zip(view, shorter, strict=True)
    }


def _filled(
    view: View,
    places: range,
    cut: Callable[[ViewMessage, int], ViewMessage],
    room: float,
    size: Callable[[ViewMessage], int],
) -> View:
    """Return the messages in `places`, their texts cut to as many characters each as the room allows."""
    others = _total(view, size) - _total(view[places.start : places.stop], size)
    longest = max((len(text) for index in places for text in _texts(view[index].content)), default=0)
    most = max(LEAST_CHARS, min(longest, int(max(room, 0) * _MOST_CHARS)))
    parts = tuple(cut(view[index], most) for index in places)

    def total(level: int) -> int:
        return others + sum(size(cut(message, level)) for message in parts)

    level = LEAST_CHARS + bisect_right(range(LEAST_CHARS, most + 1), room, key=total) - 1
    return tuple(cut(message, max(LEAST_CHARS, level)) for message in parts)


def _texts(content: Any) -> list[str]:
    """Return the texts in a message's content, those in its results as one each."""
    if isinstance(content, str):
        return [content]
    inner = (block.get("content", "") if block.get("type") == "tool_result" else [block] for block in content)
    return [each if isinstance(each, str) else "".join(map(text_of, each or ())) for each in inner]


def _cut_answer(message: ViewMessage, level: int, *, handles: Handles | None) -> ViewMessage:
    """Cut what an assistant said, or tools returned, to `level` characters each."""
    if message.role == "assistant":
        return _cut_texts(message, level, handles)

    def cut(block: dict[str, Any]) -> dict[str, Any]:
        return _cut_result(block, level, handles) if block.get("type") == "tool_result" else block

    return map_blocks(message, cut)


def _cut_request(message: ViewMessage, level: int, *, handles: Handles | None) -> ViewMessage:
    """Cut what a user said to `level` characters each text."""
    return _cut_texts(message, level, handles) if message.role == "user" else message


def _cut_texts(message: ViewMessage, level: int, handles: Handles | None) -> ViewMessage:
    handle = NO_HANDLE if handles is None else handles.of_message(message)
    if isinstance(message.content, str):
        text = _cut_text(message.content, level, handle)
        return message if text is message.content else message.with_content(text)

    def cut(block: dict[str, Any]) -> dict[str, Any]:
        text = text_of(block)
        shorter = _cut_text(text, level, handle)
        return block if shorter is text else {**block, "text": shorter}

    return map_blocks(message, cut)


def _cut_text(text: str, level: int, handle: Handle) -> str:
    if len(text) <= level:
        return text
    shorter = without_middle([text.removesuffix(MARKER)], level - level // 4, level // 4, handle)
    return text if shorter is None or len(shorter[0]) + len(MARKER) >= len(text) else shorter[0] + MARKER


def _cut_result(block: dict[str, Any], level: int, handles: Handles | None) -> dict[str, Any]:
    return result_without_middle(block, level - level // 4, level // 4, ending=MARKER, handles=handles) or block


def _blocks_changed(old: ViewMessage, new: ViewMessage) -> int:
    """Return how many blocks of a message are other ones now."""
    if new is old or isinstance(new.content, str):
        return new is not old
    return sum(map(is_not, old.content, new.content))


def _last_request(view: Sequence[ViewMessage]) -> int:
    return max((index for index, message in enumerate(view) if is_request(message.role, message.content)), default=-1)


def _total(view: Sequence[ViewMessage], size: Callable[[ViewMessage], int]) -> int:
    return sum(map(size, view))


def _last_seq(view: Sequence[ViewMessage]) -> int:
    return max((message.seq for message in view), default=WRITTEN)


def _first_change(before: Sequence[ViewMessage], after: Sequence[ViewMessage]) -> int:
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        if old is not new:
            return index
    return min(len(before), len(after))
