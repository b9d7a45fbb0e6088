"""Pruning: old tool results that take too much of the window are thinned, then cleared (requirement O7).

It is separate from compaction: no request, no answer and no tool call is touched, only what tools returned.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compaction.messages import blocks, has_tool_results, is_request, result_text_chars
from compaction.recall import tool as recall
from compaction.recall.handles import NO_HANDLE, WHERE
from compaction.shorten.recalled import Place, newest_results, recalled_lines
from compaction.shorten.shortening import hidden_characters, result_without_middle, text_of
from compaction.tokens import CHARS_PER_TOKEN, block_weight
from compaction.view import WRITTEN, View, ViewMessage, map_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from compaction.messages import Block
    from compaction.recall.handles import Handles

_PLACEHOLDER: Final = "[cleared: result of {tool}, {size}, message {seq} of the originals]"
_WITH_HANDLE: Final = "[cleared: {about}{size}{where}]"
_PLACEHOLDER_FOUND: Final = re.compile(
    rf"\[cleared: (?:result of [^\n]+, message \d+ of the originals|[^\[\]\n]{{1,240}}{WHERE})\]\Z"
)


class PrunedView(NamedTuple):
    """A pruned view: how many results kept head and tail, how many were cleared, the seqs of changed messages."""

    view: View
    softened: int = 0
    cleared: int = 0
    seqs: tuple[int, ...] = ()
    freed_tokens: int = 0


class _Result(NamedTuple):
    key: Place
    tool: str
    seq: int
    block: dict[str, Any]


def prune(
    view: Sequence[ViewMessage],
    *,
    window_tokens: int,
    soft_share: float,
    hard_share: float,
    head_chars: int,
    tail_chars: int,
    min_freed_tokens: int,
    allow: Sequence[str] = (),
    deny: Sequence[str] = (),
    handles: Handles | None = None,
) -> PrunedView:
    """Return `view` with old tool results thinned where all results together take too much of the window.

    Over `soft_share` of `window_tokens`, what recall gave back is cleared first, to a line that names it: it can be had
    again. If that is not enough, every result longer than `head_chars` and `tail_chars` characters keeps its
    head and its tail; images stay. If that still leaves more than `hard_share`, the oldest results give way to one
    line each, images included, until the share is reached and `min_freed_tokens` are freed.

    Exempt: the newest tool results (all user messages up to the last one that no assistant message parts), whatever
    comes before the first request, what compaction wrote itself, and results that load tool definitions. `allow` and
    `deny` are globs of tool names, case-sensitive; an empty `allow` allows every tool, and `deny` wins. `is_error` and
    the ids stay. If less than `min_freed_tokens` would be freed, the view comes back as it is: every change breaks the
    prompt cache, so it has to be worth it (`clear_at_least` in the API's own context editing). With `handles` what is
    left says what it was and how to have it back. Running twice changes nothing.
    """
    before = _results_weight(view)
    window = window_tokens * CHARS_PER_TOKEN
    if before <= soft_share * window:
        return PrunedView(tuple(view))
    needed = min_freed_tokens * CHARS_PER_TOKEN
    every = _candidates(view, _tool_filter(allow, deny))
    recalled = dict(recalled_lines(view))
    changed = {result.key: recalled[result.key] for result in every if result.key in recalled}
    freed = sum(
        block_weight(result.block) - block_weight(recalled[result.key]) for result in every if result.key in changed
    )
    cleared = len(changed)
    candidates = [result for result in every if result.key not in changed]
    softened: set[Place] = set()
    for result in candidates if before - freed > soft_share * window or freed < needed else ():
        softer = result_without_middle(result.block, head_chars, tail_chars, handles=handles)
        if softer is not None and (saved := block_weight(result.block) - block_weight(softer)):
            changed[result.key] = softer
            softened.add(result.key)
            freed += saved
    if before - freed > hard_share * window:
        for result in candidates:
            if before - freed <= hard_share * window and freed >= needed:
                break
            block = changed.get(result.key, result.block)
            empty = _clear(result, handles)
            if (saved := block_weight(block) - block_weight(empty)) > 0:
                changed[result.key] = empty
                softened.discard(result.key)
                freed += saved
                cleared += 1
    if freed < max(needed, 1):
        return PrunedView(tuple(view))
    pruned = _replace_results(view, changed)
    seqs = tuple(new.seq for new, old in zip(pruned, view, strict=True) if new is not old)
    return PrunedView(pruned, len(softened), cleared, seqs, freed // CHARS_PER_TOKEN)


def _results_weight(view: Sequence[ViewMessage]) -> int:
    return sum(
        block_weight(block)
        for message in view
        if has_tool_results(message.role, message.content)
        for block in blocks(message.content)
        if block.get("type") == "tool_result"
    )


def _tool_filter(allow: Sequence[str], deny: Sequence[str]) -> Callable[[str], bool]:
    def allowed(tool: str) -> bool:
        if any(fnmatchcase(tool, pattern) for pattern in deny):
            return False
        return not allow or any(fnmatchcase(tool, pattern) for pattern in allow)

    return allowed


def _candidates(view: Sequence[ViewMessage], allowed: Callable[[str], bool]) -> list[_Result]:
    """Return the results that may be pruned, oldest first."""
    first = next((i for i, message in enumerate(view) if is_request(message.role, message.content)), len(view))
    verdicts: dict[str, bool] = {}
    tools: dict[str, str] = {}
    candidates: list[_Result] = []
    newest = newest_results(view)
    for index, message in enumerate(view[:newest]):
        if isinstance(message.content, str):
            continue
        if message.role == "assistant":
            tools.update(_names(message.content))
            continue
        if index < first or message.seq == WRITTEN:
            continue
        for place, block in enumerate(message.content):
            if block.get("type") != "tool_result" or not _may_go(block):
                continue
            tool = tools.get(str(block.get("tool_use_id")), "")
            if tool not in verdicts:
                verdicts[tool] = allowed(tool)
            if verdicts[tool]:
                candidates.append(_Result((index, place), tool, message.seq, block))
    return candidates


def _names(content: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {str(block.get("id")): str(block.get("name") or "") for block in content if block.get("type") == "tool_use"}


def _may_go(block: Block) -> bool:
    """Return whether a result may be pruned: not a second time, and not if it makes later calls possible."""
    content = block.get("content")
    if isinstance(content, str):
        return not (_PLACEHOLDER_FOUND.match(content) or recall.is_cut(content))
    return isinstance(content, list) and not any(part.get("type") == "tool_reference" for part in blocks(content))


def _clear(result: _Result, handles: Handles | None) -> dict[str, Any]:
    """Return a result of one line that says what was there and where it is stored, or how to have it back."""
    content = result.block["content"]
    size = f"{result_text_chars(result.block) + hidden_characters(_join_texts(content)):,} characters"
    if others := sum(1 for part in blocks(content) if part.get("type") != "text"):
        size += f" and {others} other block{'s' if others > 1 else ''}"
    about, where = NO_HANDLE if handles is None else handles.handle_of(result.block)
    if where:
        about = about or "result of an unknown tool, "
        return {**result.block, "content": _WITH_HANDLE.format(about=about, size=size, where=where)}
    tool = " ".join(result.tool.split())[:200] or "an unknown tool"
    return {**result.block, "content": _PLACEHOLDER.format(tool=tool, size=size, seq=result.seq)}


def _replace_results(view: Sequence[ViewMessage], changed: Mapping[Place, dict[str, Any]]) -> View:
    """Return `view` with the results in `changed` in place of their originals."""
    touched = {index for index, _ in changed}

    def with_changes(index: int, message: ViewMessage) -> ViewMessage:
        places = iter(range(len(message.content)))
        return map_blocks(message, lambda block: changed.get((index, next(places)), block))

    return tuple(with_changes(i, message) if i in touched else message for i, message in enumerate(view))


def _join_texts(content: Any) -> str:
    return content if isinstance(content, str) else "".join(map(text_of, content))
