"""Where a snapshot ends and the tail goes on: what repair moved is on one side with what it was moved from."""

from __future__ import annotations

from collections import Counter
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

from compaction.messages import blocks, call_id, tool_use_ids
from compaction.repair import is_missing_result, missing_result, repair
from compaction.view import ViewMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from compaction.view import View


class _Head(Protocol):
    """What is asked of a snapshot."""

    @property
    def messages(self) -> View: ...
    @property
    def covers_through(self) -> int: ...


class _Built(Protocol):
    """What is asked of a working view, which `snapshot.build` makes: that module needs this one."""

    @property
    def view(self) -> View: ...
    @property
    def unrepaired(self) -> View: ...
    @property
    def snapshot(self) -> _Head: ...
    @property
    def last_seq(self) -> int: ...
    @property
    def in_pieces(self) -> bool: ...
    @property
    def broken_through(self) -> int | None: ...


def tail_begins(working: _Built, after: View, read_through: int = -1) -> tuple[int, int]:
    """Return the index in `after` from which on the tail makes what is there, and the seq that the tail begins with.

    Where repair moved a block, what it moved it from may be covered: then what it moved it to has to be, too; and a
    message whose result stood in what is covered has to be, since an edit that replaces it takes the result with it.
    For the same reason the tail begins after `read_through`, the newest seq whose text is in what is covered.
    """
    begins = len(after) - _untouched(working, after)
    first = _first_of_tail(working, len(after) - begins)
    if first <= read_through:
        begins = next((at for at in range(begins, len(after)) if after[at].seq > read_through), len(after))
        first = max(read_through + 1, _first_of_tail(working, len(after) - begins))
    while working.unrepaired and begins < len(after):
        moved = _moved_from(working, first)
        if moved is not None:
            begins = next((at for at in range(begins, len(after)) if after[at].seq > moved), len(after))
            first = max(moved + 1, _first_of_tail(working, len(after) - begins))
            continue
        served: View = (*after[:begins], *(message for message in working.unrepaired if message.seq >= first))
        if not _is_served_as_stored(working, first):
            served, _ = repair(served)
        if served == after:
            break
        differs = next(
            (at for at, pair in enumerate(zip(served, after, strict=False)) if pair[0] != pair[1]), len(after)
        )
        begins = min(max(begins, differs) + 1, len(after))
        first = max(first, _first_of_tail(working, len(after) - begins))
    return begins, first if begins < len(after) else working.last_seq + 1


def with_answers(working: _Built, after: View) -> View:
    """Return a view of which nothing is the tail's, with errors for calls at its end that are not all the newest's.

    What is appended next is held against that message's calls alone, and would be served as it is. Turns in pieces are
    looked at whenever they are read.
    """
    if working.in_pieces or not working.unrepaired:
        return after
    calls = [
        block["id"]
        for message in takewhile(lambda each: each.role == "assistant", reversed(after))
        for block in blocks(message.content)
        if block.get("type") == "tool_use"
    ]
    own = {call_id(each) for message in working.unrepaired[-1:] for each in tool_use_ids(message.content)}
    if own.issuperset(calls):
        return after
    answered = (*after, ViewMessage("user", [missing_result(each) for each in calls]))
    # What the newest message may begin and not end, another may not.
    return repair(answered, ends_with_newest=False)[0]


def _is_served_as_stored(working: _Built, first: int) -> bool:
    """Tell whether a tail from `first` on would be looked at no more: it was sound by what was stored before it.

    A call that repair has moved to a later message is open there, which that message as it was stored knew nothing of.
    """
    return not working.in_pieces and working.broken_through is not None and working.broken_through < first


def _first_of_tail(working: _Built, shown: int) -> int:
    """Return the seq from which on originals make the last `shown` messages, with those of which nothing is shown."""
    at = len(working.view) - shown
    before = working.view[at - 1].seq if at else -1
    return max(before, working.snapshot.covers_through) + 1


def _moved_from(working: _Built, first: int) -> int | None:
    """Return the seq of the last message from `first` on of which a result stands before it in the view, else None."""
    stand = Counter(_result_ids(message for message in working.view if message.seq < first))
    stand.subtract(_result_ids(working.snapshot.messages))
    stand.subtract(_result_ids(message for message in working.unrepaired if message.seq < first))
    last = None
    for message in working.unrepaired if max(stand.values(), default=0) > 0 else ():
        for identifier in _result_ids((message,)) if message.seq >= first else ():
            if stand[identifier] > 0:
                stand[identifier] -= 1
                last = message.seq
    return last


def _result_ids(view: Iterable[ViewMessage]) -> Iterator[str]:
    """Yield the ids that results answer, not those of errors that say that there was none."""
    for message in view:
        for block in blocks(message.content) if message.role == "user" else ():
            if block.get("type") == "tool_result" and not is_missing_result(block):
                yield call_id(str(block.get("tool_use_id")))


def _untouched(working: _Built, after: View) -> int:
    """Return how many messages at the end of `after` are the tail's own."""
    count = 0
    for new, old in zip(reversed(after), reversed(working.view), strict=False):
        if new is not old or new.seq <= working.snapshot.covers_through:
            break
        count += 1
    return count
