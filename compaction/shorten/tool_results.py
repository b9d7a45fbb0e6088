"""Tool results over a budget: older ones are cut to their first characters (requirements T1 to T10)."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, NamedTuple

from compaction.messages import has_tool_results
from compaction.shorten.recalled import RecallCalls, newest_results, recalled_line
from compaction.view import MARKER, View, ViewMessage, map_blocks, result_tail, shorten_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.recall.handles import Handles


class Cut(NamedTuple):
    """A view with its older tool results cut; `results` counts them, `indices` are the messages that changed."""

    view: View
    results: int
    indices: tuple[int, ...]


def cut_tool_results(
    view: Sequence[ViewMessage],
    retention_chars: int,
    handles: Handles | None = None,
    *,
    in_pieces: bool = False,
    start: int = 0,
) -> Cut:
    """Cut every tool result except those in the most recent tool-result message.

    With `in_pieces` the results of one answer are messages of their own, and all those of the newest stay. Results in
    messages before the one at `start` stay as well.

    A result is left alone if its content is neither a string nor holds text blocks, if it already ends with the
    marker, or if its text is no longer than `retention_chars` characters. Text blocks are cut as one text; images
    between them stay. What recall gave back is cut to a line that names it, however short it is: it can be had again.
    With `handles` the others say before the marker what was cut and how to have it back. Running twice changes nothing.
    """
    holders = [index for index, message in enumerate(view) if has_tool_results(message.role, message.content)]
    changed: list[ViewMessage] = list(view)
    indices: list[int] = []
    results = 0
    recalls = RecallCalls(view)

    def cut(block: dict[str, Any]) -> dict[str, Any]:
        nonlocal results
        if block.get("type") != "tool_result" or result_tail(block, len(MARKER)) == MARKER:
            return block
        shorter = recalled_line(block, recalls) or shorten_result(block, retention_chars, handles)
        if shorter is None:
            return block
        results += 1
        return shorter

    newest = newest_results(view) if in_pieces else max(holders, default=0)
    for index in holders[bisect_left(holders, start) : bisect_left(holders, newest)]:
        message = map_blocks(view[index], cut)
        if message is not view[index]:
            changed[index] = message
            indices.append(index)
    return Cut(tuple(changed), results, tuple(indices))


def diagnostic(results: int, input_tokens: int, budget: int) -> str:
    """Return the line that tells people what was cut and why; within its budget a context is cut by hand alone."""
    if not results:
        return "No older tool result is left to cut"
    cut = f"Compacted {results:,} old tool result(s)"
    if not 0 < budget < input_tokens:
        return f"{cut} by hand: input tokens ({input_tokens:,}), budget ({budget:,})"
    return f"{cut}: input tokens ({input_tokens:,}) exceeded the budget ({budget:,})"
