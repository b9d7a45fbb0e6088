"""Where a snapshot ends and the tail goes on: what repair moved is on one side with what it was moved from."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from compaction.messages import blocks, tool_result_ids
from compaction.repair import is_missing_result, repair

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from compaction.steps.snapshot import Working
    from compaction.view import View, ViewMessage


def tail_begins(working: Working, after: View) -> int:
    """Return the index in `after` from which on the tail makes what is there.

    Where repair moved a block, what it moved it from may be covered: then what it moved it to has to be, too; and a
    message whose result stands in what is covered has to be, since an edit that replaces it takes the result with it.
    """
    begins = len(after) - _untouched(working, after)
    while working.unrepaired and begins < len(after):
        moved = _moved_from(working, after[:begins], after[begins].seq)
        if moved is not None:
            begins = next((at for at in range(begins, len(after)) if after[at].seq > moved), len(after))
            continue
        tail = [message for message in working.unrepaired if message.seq >= after[begins].seq]
        repaired, _ = repair((*after[:begins], *tail))
        if repaired == after:
            break
        differs = next(
            (at for at, pair in enumerate(zip(repaired, after, strict=False)) if pair[0] != pair[1]), len(after)
        )
        begins = min(max(begins, differs) + 1, len(after))
    return begins


def _moved_from(working: Working, covered: View, first: int) -> int | None:
    """Return the seq of the last message from `first` on of which a result stands in `covered`, None for none."""
    own = (*working.snapshot.messages, *(message for message in working.unrepaired if message.seq < first))
    more = Counter(_result_ids(covered))
    more.subtract(_result_ids(own))
    found = None
    for message in working.unrepaired if max(more.values(), default=0) > 0 else ():
        for identifier in tool_result_ids(message.content) if message.seq >= first else ():
            if more[identifier] > 0:
                more[identifier] -= 1
                found = message.seq
    return found


def _result_ids(view: Sequence[ViewMessage]) -> Iterator[str]:
    """Yield the ids that results answer, not those of errors that say that there was none."""
    for message in view:
        for block in blocks(message.content) if message.role == "user" else ():
            if block.get("type") == "tool_result" and not is_missing_result(block):
                yield str(block.get("tool_use_id"))


def _untouched(working: Working, after: View) -> int:
    """Return how many messages at the end of `after` are the tail's own."""
    count = 0
    for new, old in zip(reversed(after), reversed(working.view), strict=False):
        if new is not old or new.seq <= working.snapshot.covers_through:
            break
        count += 1
    return count
