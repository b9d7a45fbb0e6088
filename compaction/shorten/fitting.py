"""The guard: history that fits into what the other layers leave, and fills it (requirements P5, P6)."""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import partial
from itertools import accumulate
from operator import is_not
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from compaction.media.shedding import media_of, replace_media
from compaction.messages import has_tool_results, is_request, tool_use_ids
from compaction.pins.pinned import only_frames
from compaction.recall.handles import NO_HANDLE
from compaction.repair import repair
from compaction.shorten.recalled import recalled_lines
from compaction.shorten.shortening import result_without_middle, text_of, without_middle
from compaction.shorten.trimming import drop_oldest, exchanges, last_answer, rounds
from compaction.summary.zone import opening_length, preamble_length
from compaction.tokens import json_text
from compaction.view import MARKER, WRITTEN, View, ViewMessage, map_blocks, signed_summary, strip_thinking

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from compaction.media.shedding import Medium
    from compaction.messages import Block
    from compaction.recall.handles import Handle, Handles
    from compaction.shorten.trimming import Trim

LEAST_CHARS: Final = 500
"""Characters that are always left of a text that has to be shortened, three quarters of them from its beginning."""
LEAST_ITEMS: Final = 20
"""Items that are always left of a list or an object in a call's input."""
_MOST_CHARS: Final = 8
"""Characters that a unit of room may stand for at most: four a token, and the learned ratio is held within two."""


class FittedHistory(NamedTuple):
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
    """Seqs of the stored messages that are gone."""
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
) -> FittedHistory:
    """Return `view` within `room`, in the unit of `weigh`, with as little left out as that takes.

    Recalled results give way first, oldest first, each to a line that names it; the newest results stay. Then the
    oldest images and files become texts that name them; those that nobody has answered yet stay for now. Then whole
    exchanges are dropped, oldest first, then the oldest rounds of the last answered exchange. Its request and newest
    round stay, and so do unanswered requests and a first message with a summary. Of the unit that was dropped last, the
    request and the newest rounds come back if they fit, and its long texts are cut instead (see `_with_part_of`).

    If the rest is still too large, the first message's own words are cut, down to its summary; then long answers,
    results and inputs of calls are cut; then requests that were answered. Then all media but the newest message's
    become texts, and at last the oldest unanswered requests are dropped. The result may still be over `room`: the
    caller warns. A larger room never leaves less, except where the first message comes back whole.

    `asked` is what will follow the history, its room already taken off. `unread` are seqs of messages that were left
    out of the view because they would not fit, with `lacks_rounds` older rounds of its last exchange among them. With
    `handles` the notes of what is cut say how to have it back.
    """
    whole = tuple(view) if asked is None else (*view, asked)

    def size(message: ViewMessage) -> int:
        return 0 if message is asked else math.ceil(weigh(message))

    def fits(_: int, measured: int) -> bool:
        return measured <= room

    def fits_never(*_: int) -> bool:
        return False

    drop = partial(drop_oldest, measure=size, carries_summary=carries_summary)

    def fill(whole: View) -> View:
        """Drop units until the rest fits, and keep what there is room for of the last one."""
        trim = drop(whole, fits, waiting=False)
        if not trim.units or _total(trim.view, size) > room:
            return trim.view
        larger = drop(whole, fits_never, waiting=False, most_units=len(trim.units) - 1)
        return _with_part_of(larger, trim.units[-1], len(whole), room, size, handles, cuts) or trim.view

    given = whole
    whole, cuts = _without_recalled(whole, room, size, carries_summary=carries_summary)
    whole = without_oldest_media(whole, room, size, newest_media(whole))
    kept, opening = fill(whole), None
    first = preamble_length(whole)
    if carries_summary and _total(kept, size) > room and (opening := _only_summary(whole)) is not None:
        kept = _with_cut_opening(whole, opening, fill, room, size, handles, cuts)
        opening = opening if kept[first].content == opening.content else None
    if _total(kept, size) > room:
        opened = opening_length(kept, carries_summary=carries_summary)
        kept = _shorten_view(kept, room, size, opened, cuts, handles)
        kept = without_oldest_media(kept, room, size, {len(kept) - 1})
        kept = drop(kept, fits, waiting=True).view
    cut = sum(cuts.get(id(message), 0) for message in kept)
    kept_seqs = {message.seq for message in kept}
    if kept != given:
        kept = strip_thinking(kept, _last_seq(view), from_index=_first_change(given, kept))
        kept, _ = repair(kept if asked is None else kept[:-1])
    elif asked is not None:
        kept = kept[:-1]
    gone = tuple(message.seq for message in view if message.seq not in kept_seqs and message.seq != WRITTEN)
    rounds_dropped = lacks_rounds or _lost_rounds(view, set(gone))
    tokens, exchanges_kept = _total(kept, size), count_exchanges(kept)
    media = len(media_of([message for message in view if message.seq in kept_seqs])) - len(media_of(kept))
    return FittedHistory(
        kept, tokens, exchanges_kept, cut, rounds_dropped, opening is not None, (*unread, *gone), max(0, media)
    )


def _lost_rounds(view: Sequence[ViewMessage], gone: set[int]) -> bool:
    """Return whether rounds of an exchange are gone whose request is still there."""
    parts = exchanges(view)
    return bool(gone and parts) and any(view[part.start].seq in gone for part in rounds(view, parts[-1])[:-1])


def _only_summary(view: Sequence[ViewMessage]) -> ViewMessage | None:
    """Return the first message without its own words, None where these are asked for still, or there are none."""
    first = preamble_length(view)
    if not view or signed_summary(view) is not None or _last_request(view) <= first:
        return None
    return only_frames(view[first])


def _with_part_of(
    larger: Trim,
    unit: range,
    length: int,
    room: float,
    size: Callable[[ViewMessage], int],
    handles: Handles | None,
    cuts: dict[int, int],
) -> View | None:
    """Return the view of `larger`, which is too large, with only a part of its oldest unit; None if no part fits.

    `unit` are the indices that the unit had in the view that was trimmed, of `length` messages. What the user asked in
    it stays, and its newest rounds as far as they fit. The round before these is cut to the room that is left, or
    dropped if it cannot be cut so short. If no round fits, the request is cut as well. `cuts` is told of what was cut.
    """
    view = larger.view
    bridge = len(view) + len(larger.dropped) - length
    start = unit.start - sum(index < unit.start for index in larger.dropped) + bridge
    unit = range(start, start + len(unit))
    parts = rounds(view, unit)
    asked = range(unit.start, parts[0].start if parts else unit.stop)
    left = room - _total(view, size) + _total(view[asked.stop : unit.stop], size)
    newest = len(parts)
    while newest and (weight := _total(view[parts[newest - 1].start : parts[newest - 1].stop], size)) <= left:
        left -= weight
        newest -= 1
    newest = max(newest, 1)
    head, oldest = view[: asked.stop], parts[newest - 1 : newest]
    tail_at = oldest[0].start if oldest else unit.stop
    joined = (*head, *view[tail_at:])
    following = view[unit.stop : unit.stop + 1]
    if newest < len(parts) or not any(has_tool_results(each.role, each.content) for each in following):
        following = ()

    def cut(message: ViewMessage, level: int) -> ViewMessage:
        # The next request may bring results of the round: these are cut with it, and its words stay.
        is_next = any(message.seq == each.seq for each in following)
        return (_cut_answer if is_next else cut_message)(message, level, handles=handles)

    cut_end = len(head) + sum(map(len, oldest)) + len(following)
    cut_places = [range(len(head), cut_end)]
    if newest >= len(parts):
        cut_places.append(range(asked.start, cut_end))
    for places in cut_places:
        shorter = (*joined[: places.start], *_fill_room(joined, places, cut, room, size), *joined[places.stop :])
        if _total(shorter, size) <= room:
            _note_cuts(joined, shorter, cuts)
            return shorter
    without = (*head, *view[oldest[0].stop if oldest else unit.stop :])
    return without if newest < len(parts) and _total(without, size) <= room else None


def _with_cut_opening(
    whole: View,
    opening: ViewMessage,
    fill: Callable[[View], View],
    room: float,
    size: Callable[[ViewMessage], int],
    handles: Handles | None,
    cuts: dict[int, int],
) -> View:
    """Return `whole` fitted with the first message's own words cut, or gone where even that is too large.

    `opening` is the first message without them. The other messages come first: the words get the room that these leave.
    """
    first = preamble_length(whole)
    cut = partial(_cut_opening, opening=opening, handles=handles)

    def with_opening(view: View, message: ViewMessage) -> View:
        return (*view[:first], message, *view[first + 1 :])

    kept = fill(with_opening(whole, cut(whole[first], LEAST_CHARS)))
    if _total(kept, size) > room:
        return fill(with_opening(whole, opening))
    # The words of the whole message are cut, not those that were cut already.
    uncut = with_opening(kept, whole[first])
    filled = _fill_room(uncut, range(first, first + 1), cut, room, size)
    kept = with_opening(kept, filled[0])
    _note_cuts(uncut[first : first + 1], filled, cuts)
    return kept


def _note_cuts(before: Sequence[ViewMessage], after: Sequence[ViewMessage], cuts: dict[int, int]) -> None:
    """Count the texts of each message in `after` that were cut, with those that were cut in it before."""
    for old, new in zip(before, after, strict=True):
        if new is not old:
            cuts[id(new)] = cuts.get(id(old), 0) + _blocks_changed(old, new)


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


def _shorten_view(
    view: View,
    room: float,
    size: Callable[[ViewMessage], int],
    opening: int,
    cuts: dict[int, int],
    handles: Handles | None,
) -> View:
    """Return `view` with long texts cut until it fits: answers, results and inputs of calls, then requests.

    The first `opening` messages stay as they are, and so does the last request if nobody has answered it. `cuts` is
    told of what was cut.
    """
    asked_last = _last_request(view)
    requests_end = asked_last if asked_last > last_answer(view) else len(view)
    shorter = view
    for cut, end in (
        (partial(_cut_answer, handles=handles), len(view)),
        (partial(_cut_request, handles=handles), asked_last),
        (partial(_cut_request, handles=handles), requests_end),
    ):
        shorter = (
            *shorter[:opening],
            *_fill_room(shorter, range(opening, end), cut, room, size),
            *shorter[max(opening, end) :],
        )
        if _total(shorter, size) <= room:
            break
    _note_cuts(view, shorter, cuts)
    return shorter


def _fill_room(
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
    """Return the texts in a message's content, those in its results and inputs of calls as one each."""
    if isinstance(content, str):
        return [content]
    return [_text_in(block) for block in content]


def _text_in(block: Block) -> str:
    match block.get("type"):
        case "tool_use":
            return json_text(block.get("input"))
        case "tool_result":
            inner = block.get("content", "")
            return inner if isinstance(inner, str) else "".join(map(text_of, inner or ()))
        case _:
            return text_of(block)


def cut_message(message: ViewMessage, level: int, *, handles: Handles | None) -> ViewMessage:
    """Cut every text, result and input of a call in a message to `level` characters each."""
    return _cut_request(_cut_answer(message, level, handles=handles), level, handles=handles)


def _cut_opening(message: ViewMessage, level: int, *, opening: ViewMessage, handles: Handles | None) -> ViewMessage:
    """Cut a first message's own words to `level` characters each; `opening` is what else is in it."""
    content, rest = message.content, opening.content
    own = message.with_content(content[: len(content) - len(rest)])
    shorter = _cut_texts(own, level, handles)
    if shorter is own:
        return message
    if isinstance(content, str):
        return message.with_content(f"{shorter.content}{rest}")
    return message.with_content([*shorter.content, *rest])


def _cut_answer(message: ViewMessage, level: int, *, handles: Handles | None) -> ViewMessage:
    """Cut what an assistant said, or tools returned, to `level` characters each."""
    if message.role == "assistant":
        return map_blocks(_cut_texts(message, level, handles), partial(_cut_call, level=level))

    def cut(block: dict[str, Any]) -> dict[str, Any]:
        return _cut_result(block, level, handles) if block.get("type") == "tool_result" else block

    return map_blocks(message, cut)


def _cut_request(message: ViewMessage, level: int, *, handles: Handles | None) -> ViewMessage:
    """Cut what a user said to `level` characters each text."""
    return _cut_texts(message, level, handles) if message.role == "user" else message


def _cut_texts(message: ViewMessage, level: int, handles: Handles | None) -> ViewMessage:
    handle = NO_HANDLE if handles is None else handles.message_handle(message)
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


def _cut_call(block: dict[str, Any], level: int) -> dict[str, Any]:
    """Cut the texts in a tool call's input to `level` characters each, and its lists and objects to as much."""
    given = block.get("input")
    if block.get("type") != "tool_use" or not isinstance(given, dict) or len(json_text(given)) <= level:
        return block
    shorter = cut_value(given, level)
    return block if shorter is given else {**block, "input": shorter}


def cut_value(value: Any, level: int) -> Any:
    """Return a JSON value with every text in it cut to `level` characters; the same object if nothing was.

    Of a list or an object of more than `level` characters the first items stay, and the last.
    """
    if isinstance(value, str):
        return _cut_text(value, level, NO_HANDLE)
    if isinstance(value, dict):
        kept, changed = _cut_items(value.items(), level)
        return dict(kept) if changed else value
    if isinstance(value, list):
        entries, changed = _cut_items(enumerate(value), level)
        return [item for _, item in entries] if changed else value
    return value


def _cut_items(items: Iterable[tuple[Any, Any]], level: int) -> tuple[list[tuple[Any, Any]], bool]:
    """Return the items of a list or an object, cut, and whether any is another or gone."""
    given = list(items)
    cut = [(key, cut_value(value, level)) for key, value in given]
    is_changed = any(new is not old for (_, new), (_, old) in zip(cut, given, strict=True))
    if len(cut) <= LEAST_ITEMS:
        return cut, is_changed
    sizes = [len(json_text(value)) + len(str(key)) for key, value in cut]
    ends = [*accumulate(sizes)]
    head = max(LEAST_ITEMS, bisect_right(ends, level - level // 4))
    tail = sum(ends[-1] - end + size <= level // 4 for end, size in zip(ends[head:], sizes[head:], strict=True))
    if head + tail >= len(cut):
        return cut, is_changed
    return [*cut[:head], *cut[len(cut) - tail :]], True


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
