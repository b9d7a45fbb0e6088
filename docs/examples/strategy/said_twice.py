"""An example of a strategy from outside: of tool results with the same text, only the newest shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compaction.policy import Policy

SHORT_CHARS = 200
"""Characters of text up to which a result is not worth replacing."""
SAME = "[The same result came again later.]"


def show_once(messages: Sequence[dict[str, Any]], policy: Policy) -> Sequence[Mapping[str, Any] | None]:
    """Return one answer for each message: the message, one with other content, or None to leave it out.

    A strategy is a pure function. It may not touch the newest message, nor a summary at the beginning; the service
    refuses an answer that does, or that the Messages API would not accept, and goes on without it.
    """
    del policy
    seen: set[str] = set()
    view: list[Mapping[str, Any] | None] = []
    for message in reversed(messages):
        content = message["content"]
        if isinstance(content, list):
            content = [_once(block, seen) for block in content]
        view.append({**message, "content": content})
    return view[::-1]


def _once(block: dict[str, Any], seen: set[str]) -> dict[str, Any]:
    text = block.get("content") if block.get("type") == "tool_result" else None
    if not isinstance(text, str) or len(text) <= SHORT_CHARS:
        return block
    if text in seen:
        return {**block, "content": SAME}
    seen.add(text)
    return block
