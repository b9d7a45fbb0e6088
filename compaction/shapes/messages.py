"""Messages: the inner form without what is none of the Messages API's.

What stands for blocks of other shapes, and in which order blocks of one role stand, is that of the API's reference,
"Create a message".
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from compaction.messages import ITEM, THINKING, blocks, is_of_other_shape
from compaction.shapes.inner import LeftOut
from compaction.shapes.spoken import REASONING, spoken, what_is
from compaction.view import OPENING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from compaction.messages import Block
    from compaction.view import ViewMessage

_FIRST: Final = {"user": "tool_result"}
_LAST: Final = {"assistant": "tool_use"}


def encode(view: Sequence[ViewMessage]) -> tuple[list[Any], list[LeftOut]]:
    """Return a view as messages, and what has no counterpart. Neighbours of one role become one message.

    So results that were sent one by one stand together, as the API wants those of one answer. A view in which all came
    as messages stays as it is.
    """
    left_out: list[LeftOut] = []
    encoded: list[Any] = []
    for role, group in groupby(view, key=lambda message: message.role):
        run = list(group)
        contents = [_own(message, left_out) for message in run]
        if len(run) == 1 and isinstance(contents[0], str):
            encoded.append({"role": role, "content": contents[0]})
        elif every := _in_order(role, [block for content in contents for block in blocks(content)]):
            encoded.append({"role": role, "content": every})
    merged = list(_merge_roles(encoded))
    if merged and merged[0]["role"] == "assistant" and not _is_summary(merged[0]["content"]):
        merged.insert(0, {"role": "user", "content": OPENING})
    return merged, left_out


def _is_summary(content: Any) -> bool:
    return any(block.get("type") == "compaction" for block in blocks(content)[:1])


def _own(message: ViewMessage, left_out: list[LeftOut]) -> Any:
    """Return a message's content as the API takes it."""
    if isinstance(message.content, str) or not any(map(is_of_other_shape, message.content)):
        return message.content
    kept: list[Block] = []
    for block in message.content:
        if not is_of_other_shape(block):
            kept.append(block)
        elif block.get("type") in THINKING:
            left_out.append(LeftOut((message.seq,), REASONING))
        elif block.get("type") in {"tool_use", "tool_result"}:
            kept.append({name: value for name, value in block.items() if name != ITEM})
        elif (text := spoken(block)) is None:
            left_out.append(LeftOut((message.seq,), what_is(block)))
        elif text.strip():
            kept.append({"type": "text", "text": text})
    return [_within(block, message.seq, left_out) for block in kept]


def _within(block: Block, seq: int, left_out: list[LeftOut]) -> Block:
    """Return a result with what is inside it as the API takes it."""
    content = block.get("content")
    if block.get("type") != "tool_result" or not isinstance(content, list) or not any(map(is_of_other_shape, content)):
        return block
    inside: list[Block] = []
    for part in content:
        if not is_of_other_shape(part):
            inside.append(part)
        elif (text := spoken(part)) is None:
            left_out.append(LeftOut((seq,), what_is(part)))
        elif text.strip():
            inside.append({"type": "text", "text": text})
    return {**block, "content": inside}


def _in_order(role: str, every: Sequence[Block]) -> list[Block]:
    """Return blocks of one role as the API wants them: results first, calls last."""
    first = [block for block in every if block.get("type") == _FIRST.get(role)]
    last = [block for block in every if block.get("type") == _LAST.get(role)]
    return [*first, *(block for block in every if block.get("type") not in {_FIRST.get(role), _LAST.get(role)}), *last]


def _merge_roles(messages: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Yield messages, those of one role together where what stood between them has no counterpart."""
    for role, group in groupby(messages, key=lambda message: message["role"]):
        run = list(group)
        every = [block for message in run for block in blocks(message["content"])]
        yield run[0] if len(run) == 1 else {"role": role, "content": _in_order(role, every)}
