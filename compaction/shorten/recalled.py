"""What recall gave back goes first where room is needed, since it can be had again: each result becomes a line."""

from __future__ import annotations

from functools import cached_property
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
    """The ids of the calls of recall in a view, looked for when first asked for: hardly any result is recall's."""

    def __init__(self, view: Sequence[ViewMessage]) -> None:
        self._view = view

    @cached_property
    def _ids(self) -> frozenset[str]:
        return frozenset(
            [
                str(block.get("id"))
                for message in self._view
                if message.role == "assistant" and not isinstance(message.content, str)
                for block in message.content
                if block.get("type") in CALLS and tool.is_call(block)
            ]
        )

    def __contains__(self, identifier: object) -> bool:
        return identifier in self._ids


def recalled_line(block: dict[str, Any], calls: Container[str]) -> dict[str, Any] | None:
    """Return a result of recall as the line that names what it gave back, None for another or a shorter one."""
    text = text_of(block.get("content", ""))
    # Ids may repeat: a result that names no place is another tool's.
    if not tool.is_framed(text) and (not tool.named_in(text) or block.get("tool_use_id") not in calls):
        return None
    line = f"{tool.cut(text)} {MARKER}"
    return {**block, "content": line} if len(line) < len(text) else None


def recalled_lines(view: Sequence[ViewMessage], start: int = 0) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield the results of recall from message `start` on, as their lines, oldest first; the newest results stay."""
    calls = RecallCalls(view)
    for index in range(start, newest_results(view)):
        content = view[index].content
        if view[index].role != "user" or isinstance(content, str):
            continue
        for place, block in enumerate(content):
            if block.get("type") == "tool_result" and (line := recalled_line(block, calls)) is not None:
                yield (index, place), line


def last_results(view: Sequence[ViewMessage]) -> int:
    """Return the index of the most recent tool-result message, 0 for none."""
    backwards = range(len(view) - 1, -1, -1)
    return next((i for i in backwards if has_tool_results(view[i].role, view[i].content)), 0)


def newest_results(view: Sequence[ViewMessage]) -> int:
    """Return the index from which on results are the newest: the API takes neighbouring user messages as one."""
    last = last_results(view)
    return last - sum(1 for _ in takewhile(lambda message: message.role == "user", reversed(view[:last])))
