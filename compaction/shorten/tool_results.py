"""Tool results over a budget: older ones are cut to their first characters (requirements T1 to T10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from compaction.messages import result_text_chars
from compaction.shorten.recalled import RecallCalls, newest_results, recalled_line
from compaction.text.html_pages import readable_text
from compaction.view import MARKER, View, ViewMessage, result_tail, shorten_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.recall.handles import Handles
    from compaction.view import WholeResults


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
    start: int = 0,
    reads_html: bool = True,
    whole: WholeResults | None = None,
) -> Cut:
    """Cut every tool result except those in the most recent tool-result message.

    Results of one answer may be messages of their own, as they were posted one by one: the API takes neighbours as one
    message, so all of them stay. Results in messages before the one at `start` stay as well.

    A result is left alone if its content is neither a string nor holds text blocks, if it already ends with the
    marker, or if its text is no longer than `retention_chars` characters. Text blocks are cut as one text; images
    between them stay. What recall gave back is cut to a line that names it, however short it is: it can be had again.
    With `reads_html` what is kept of an HTML document is its readable text. It is read from the `whole` of a result
    that the view has capped. With `handles` the others say before the marker what was cut and how to have it back.
    Running twice changes nothing.
    """
    changed: list[ViewMessage] = list(view)
    indices: list[int] = []
    results = 0
    recalls = RecallCalls(view)
    for index in range(start, newest_results(view)):
        message = view[index]
        if message.role != "user" or isinstance(message.content, str):
            continue
        content = message.content
        for place, block in enumerate(content):
            if not _may_be_cut(block):
                continue
            shorter = recalled_line(block, recalls.ids_before(index))
            if shorter is None and reads_html and retention_chars:
                shorter = _shorten_page(block, retention_chars, handles, whole)
            shorter = shorter or shorten_result(block, retention_chars, handles)
            if shorter is None:
                continue
            if content is message.content:
                content = content.copy()
                indices.append(index)
            content[place] = shorter
            results += 1
        if content is not message.content:
            changed[index] = message.with_content(content)
    return Cut(tuple(changed), results, tuple(indices))


def _shorten_page(
    block: dict[str, Any], retention_chars: int, handles: Handles | None, whole: WholeResults | None
) -> dict[str, Any] | None:
    """Return a result cut to the readable text of its HTML document, None if it has none."""
    source = block if whole is None else whole.whole_of(block)
    length = result_text_chars(block)
    if length <= retention_chars:
        return None
    is_page = False

    def read(text: str) -> str:
        nonlocal is_page
        page = readable_text(text, retention_chars)
        is_page = is_page or page is not None
        return text if page is None else page

    shorter = shorten_result(source, retention_chars, handles, read=read)
    return shorter if is_page and shorter is not None and result_text_chars(shorter) < length else None


def _may_be_cut(block: dict[str, Any]) -> bool:
    """Return whether a block is a result without the marker; nearly all results in a snapshot have it."""
    if block.get("type") != "tool_result":
        return False
    content = block.get("content", "")
    tail = content if isinstance(content, str) else result_tail(block, len(MARKER))
    return not tail.endswith(MARKER)


def diagnostic(results: int, input_tokens: int, budget: int) -> str:
    """Return the line that tells people what was cut and why; within its budget a context is cut by hand alone."""
    if not results:
        return "No older tool result is left to cut"
    cut = f"Compacted {results:,} old tool result(s)"
    if not 0 < budget < input_tokens:
        return f"{cut} by hand: input tokens ({input_tokens:,}), budget ({budget:,})"
    return f"{cut}: input tokens ({input_tokens:,}) exceeded the budget ({budget:,})"
