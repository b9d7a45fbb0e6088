"""What recall gave back goes first where room is needed, since it can be had again: each result becomes a line."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

from compaction.messages import CALLS, has_tool_results
from compaction.recall import tool
from compaction.recall.parts import text_of
from compaction.view import MARKER, ViewMessage

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

Place = tuple[int, int]
"""A block: the index of its message in the view, its index among the message's blocks."""


class RecallCalls:
    """The calls of recall that results can answer: those in the answer before them, since the view is a repaired one.

    Messages are asked for in their order, and none is gone through twice.
    """

    def __init__(self, view: Sequence[ViewMessage]) -> None:
        self._view = view
        self._seen = 0
        self._ids: set[str] = set()

    def ids_before(self, index: int) -> Container[str]:
        """Return the ids of those that message `index` can answer."""
        view, asked = self._view, index
        while asked > self._seen and view[asked - 1].role == "user":
            asked -= 1
        if asked > self._seen:
            self._ids = set()
        while asked > self._seen and (message := view[asked - 1]).role == "assistant":
            asked -= 1
            for block in () if isinstance(message.content, str) else message.content:
                if block.get("type") in CALLS and tool.is_call(block):
                    self._ids.add(str(block.get("id")))
        self._seen = index
        return self._ids


def recalled_line(block: dict[str, Any], calls: Container[str]) -> dict[str, Any] | None:
    """Return a result of recall as one line that names the references in it; None for any other or a shorter result.

    `calls` are the ids of the recall calls that the result can answer. The call decides: a page or a file may contain
    the text of a recall frame.
    """
    if block.get("tool_use_id") not in calls:
        return None
    text = text_of(block.get("content", ""))
    # Ids may repeat, so a result that names no reference belongs to another tool.
    if not tool.is_recall_result(text) and not tool.references_in(text):
        return None
    line = f"{tool.cut_result(text)} {MARKER}"
    return {**block, "content": line} if len(line) < len(text) else None


def recalled_lines(view: Sequence[ViewMessage], start: int = 0) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield the results of recall from message `start` on, as their lines, oldest first; the newest results stay."""
    calls = RecallCalls(view)
    for index in range(start, newest_results(view)):
        content = view[index].content
        if view[index].role != "user" or isinstance(content, str):
            continue
        for place, block in enumerate(content):
            if (
                block.get("type") == "tool_result"
                and (line := recalled_line(block, calls.ids_before(index))) is not None
            ):
                yield (index, place), line


def last_results(view: Sequence[ViewMessage]) -> int:
    """Return the index of the most recent tool-result message, 0 for none."""
    backwards = range(len(view) - 1, -1, -1)
    return next((i for i in backwards if has_tool_results(view[i].role, view[i].content)), 0)


def newest_results(view: Sequence[ViewMessage]) -> int:
    """Return the index from which on results are the newest: the API takes neighbouring user messages as one."""
    last = last_results(view)
    return last - sum(1 for _ in takewhile(lambda message: message.role == "user", reversed(view[:last])))
