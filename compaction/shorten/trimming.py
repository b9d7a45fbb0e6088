"""Dropping: the oldest whole exchanges, then the oldest tool rounds of the last answered one, then what waits."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from compaction.messages import SERVER_CALLS, calling_tool, has_tool_results, is_request, is_server_result
from compaction.pieces import beginnings, goes_on
from compaction.summary.zone import opening_length, preamble_length
from compaction.view import ACKNOWLEDGEMENT, WRITTEN, View, ViewMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Trim(NamedTuple):
    """A shorter view and what became of the old one."""

    view: View
    dropped: tuple[int, ...]
    """Indices of the messages that are gone."""
    cut: tuple[int, ...] = ()
    """Indices of requests that lost the results they began with: the calls these answered are gone."""
    units: tuple[range, ...] = ()
    """The index ranges that are gone, in the order in which they went."""


def exchanges(view: Sequence[ViewMessage]) -> list[range]:
    """Return the exchanges of a view as index ranges; what comes before the first request belongs to it.

    What follows the last assistant message belongs to its exchange: requests that nobody has answered yet are asked on
    top of it, and results there answer its calls.
    """
    starts = [index for index, message in enumerate(view) if is_request(message.role, message.content)]
    if not starts:
        return [range(len(view))] if view else []
    answer = last_answer(view)
    starts = [start for start in starts if start < answer] or starts[:1]
    starts[0] = 0
    return [range(start, end) for start, end in pairwise([*starts, len(view)])]


def last_answer(view: Sequence[ViewMessage]) -> int:
    """Return the index of the last assistant message, -1 for none."""
    return next((index for index in reversed(range(len(view))) if view[index].role == "assistant"), -1)


def rounds(view: Sequence[ViewMessage], exchange: range) -> list[range]:
    """Return the rounds of an exchange: an assistant message and what follows it up to the next one.

    Neighbouring assistant messages are one round: the API takes them as one message. So are those between the call of a
    server tool and the last message that refers to it, by a result or as the caller of the client's tools.
    """
    starts: list[int] = []
    called_in: dict[str, int] = {}
    for index in exchange:
        message = view[index]
        if message.role != "assistant":
            continue
        if index == exchange.start or view[index - 1].role != "assistant":
            starts.append(index)
        for block in () if isinstance(message.content, str) else message.content:
            if block.get("type") in SERVER_CALLS:
                called_in.setdefault(str(block.get("id")), starts[-1])
            elif called_in:
                named = str(block.get("tool_use_id")) if is_server_result(block) else calling_tool(block)
                if named in called_in:
                    starts = starts[: bisect_right(starts, called_in[named])]
    return [range(start, end) for start, end in pairwise([*starts, exchange.stop])]


def drop_oldest(
    view: Sequence[ViewMessage],
    fits: Callable[[int, int], bool],
    *,
    measure: Callable[[ViewMessage], int] = lambda _: 1,
    carries_summary: bool = False,
    waiting: bool = True,
    in_pieces: bool = False,
    most_units: int | None = None,
) -> Trim:
    """Drop from the oldest end until `fits(messages, measured)` holds, or nothing more may go.

    Whole exchanges go first; then, inside the last one, its oldest rounds; with `waiting` the requests after them that
    nobody has answered yet, but for the newest message. The last exchange's request and its newest round always stay,
    and so does what carries a summary in the beginning. `measured` is the sum of `measure` over what is left. An
    acknowledgement takes the place of what was dropped after a summary where roles would not alternate. A request that
    also answers calls of the exchange before it loses those results with it. With `in_pieces` neighbours of one role
    are one message. At most `most_units` units go; None sets no limit.
    """
    current = list(view)
    sizes = [measure(message) for message in view]
    begins = beginnings(view, in_pieces=in_pieces)
    count, total = sum(begins), sum(sizes)
    bridge: View = ()
    cut: tuple[int, ...] = ()
    gone: set[int] = set()
    units: list[range] = []
    opening = opening_length(view, carries_summary=carries_summary)
    acknowledged = opening > preamble_length(view) and view[opening - 1].role == "user"
    answer = last_answer(view)
    before = opening - 1
    for unit in (*_drop_order(view, opening), *(_waiting(view, max(opening, answer + 1)) if waiting else ())):
        if len(units) == most_units or fits(count + len(bridge), total + sum(map(measure, bridge))):
            break
        units.append(unit)
        gone.update(unit)
        count -= sum(begins[unit.start : unit.stop])
        total -= sum(sizes[index] for index in unit)
        if unit.start <= answer and (first := view[unit.stop]).role == "user":
            bridge = (ViewMessage("assistant", ACKNOWLEDGEMENT),) if acknowledged else ()
            current[unit.stop] = _without_results(first)
            cut = () if current[unit.stop] is first else (unit.stop,)
            total += measure(current[unit.stop]) - sizes[unit.stop]
            sizes[unit.stop] = measure(current[unit.stop])
        before = before if unit.start - 1 in gone else unit.start - 1
        is_bridged = bool(bridge) and before == opening - 1
        joins = in_pieces and before >= 0 and not is_bridged and goes_on(view[before], current[unit.stop])
        count += (not joins) - begins[unit.stop]
        begins[unit.stop] = not joins
    kept = [message for index, message in enumerate(current) if index not in gone]
    kept[opening:opening] = bridge
    return Trim(tuple(kept), tuple(sorted(gone)), cut, tuple(units))


def _drop_order(view: Sequence[ViewMessage], opening: int) -> Iterator[range]:
    """Yield what was answered and may be dropped, in order; the first `opening` messages stay."""
    parts = exchanges(view)
    start = opening
    for exchange in parts[:-1]:
        unit = range(start, exchange.stop)
        if any(view[index].seq != WRITTEN for index in unit):
            yield unit
            start = exchange.stop
    if parts:
        yield from rounds(view, range(max(opening, parts[-1].start), parts[-1].stop))[:-1]


def _waiting(view: Sequence[ViewMessage], start: int) -> Iterator[range]:
    """Yield the messages from `start` on that only ask, but for the newest: results belong to calls that stay."""
    for index in range(start, len(view) - 1):
        if not has_tool_results(view[index].role, view[index].content):
            yield range(index, index + 1)


def _without_results(message: ViewMessage) -> ViewMessage:
    if not has_tool_results(message.role, message.content):
        return message
    rest = [block for block in message.content if isinstance(block, dict) and block.get("type") != "tool_result"]
    return message.with_content(rest)
