"""Dropping: the oldest whole exchanges, then the oldest tool rounds of the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from compaction.messages import is_request
from compaction.view import ACKNOWLEDGEMENT, View, ViewMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Trim(NamedTuple):
    """A shorter view and the indices of the messages that were dropped from the old one."""

    view: View
    dropped: tuple[int, ...]


def exchanges(view: Sequence[ViewMessage]) -> list[range]:
    """Return the exchanges of a view as index ranges; what stands before the first request belongs to it."""
    starts = [index for index, message in enumerate(view) if is_request(message.role, message.content)]
    if not starts:
        return [range(len(view))] if view else []
    starts[0] = 0
    return [range(start, end) for start, end in zip(starts, [*starts[1:], len(view)], strict=True)]


def rounds(view: Sequence[ViewMessage], exchange: range) -> list[range]:
    """Return the rounds of an exchange: an assistant message and what follows it up to the next one.

    Neighbouring assistant messages are one round: the API takes them as one message.
    """
    starts = [
        index
        for index in exchange
        if view[index].role == "assistant" and (index == exchange.start or view[index - 1].role != "assistant")
    ]
    return [range(start, end) for start, end in zip(starts, [*starts[1:], exchange.stop], strict=True)]


def drop_oldest(
    view: Sequence[ViewMessage],
    fits: Callable[[int, int], bool],
    *,
    measure: Callable[[ViewMessage], int] = lambda _: 1,
    carries_summary: bool = False,
) -> Trim:
    """Drop from the oldest end until `fits(messages, measured)` holds, or nothing more may go.

    Whole exchanges go first; then, inside the last exchange, its oldest rounds. The last exchange's request and its
    newest round always stay, and so does a first message that carries a summary. `measured` is the sum of
    `measure` over what is left. An acknowledgement takes the place of what was dropped after a summary where
    roles would not alternate.
    """
    sizes = [measure(message) for message in view]
    count, total = len(view), sum(sizes)
    gone: set[int] = set()
    for unit in _drop_order(view, carries_summary=carries_summary):
        if fits(count, total):
            break
        gone.update(unit)
        count -= len(unit)
        total -= sum(sizes[index] for index in unit)
    if not gone:
        return Trim(tuple(view), ())
    kept = [message for index, message in enumerate(view) if index not in gone]
    if carries_summary and len(kept) > 1 and kept[1].role == "user":
        kept.insert(1, ViewMessage("assistant", ACKNOWLEDGEMENT))
    return Trim(tuple(kept), tuple(sorted(gone)))


def _drop_order(view: Sequence[ViewMessage], *, carries_summary: bool) -> Iterator[range]:
    """Yield what may be dropped, in order."""
    parts = exchanges(view)
    for exchange in parts[:-1]:
        held = carries_summary and exchange.start == 0
        yield range(1 if held else exchange.start, exchange.stop)
    if parts:
        yield from rounds(view, parts[-1])[:-1]
