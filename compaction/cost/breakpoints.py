"""Breakpoints for the prompt cache in a request of the Messages API, placed where the next call can read them.

A breakpoint depends only on the content before it and on the ends of earlier calls. While the head stays the same, the
next context has the breakpoints of the head's end and of the last call at the same places, after the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from compaction.cache_marks import MAX_MARKS, markable
from compaction.cost.calls import NO_CACHE, ONE_HOUR
from compaction.messages import count_marks, is_request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class _Row(msgspec.Struct):
    role: str
    content: msgspec.Raw


_rows: Final = msgspec.json.Decoder(list[_Row]).decode
_value: Final = msgspec.json.Decoder().decode


class Breakpoint(NamedTuple):
    """A block that gets a mark: the `block` of a `message`, of the system prompt or of the list of tools.

    Without a `block`, the content is a text, which the API treats as one text block.
    """

    field: Literal["tools", "system", "messages"]
    message: int | None
    block: int | None


class SentMessages(NamedTuple):
    """Messages as served: their roles, and the content of those that are inspected."""

    roles: Sequence[str]
    content: Callable[[int], Any]
    head: int = 0
    """Number of messages from the snapshot. The others came after it."""
    varying: int | None = None
    """Index of the request with context blocks, which change or disappear with the next request."""


def decode_messages(messages: bytes, head: int) -> SentMessages:
    """Return messages from their JSON text. Only inspected contents are parsed."""
    rows = _rows(messages)
    return SentMessages([row.role for row in rows], lambda at: _value(rows[at].content), head)


class CacheControl(msgspec.Struct):
    """A mark for the prompt cache. `ttl` is set for the longer lifetime."""

    type: Literal["ephemeral"] = "ephemeral"
    ttl: Literal["1h"] | msgspec.UnsetType = msgspec.UNSET


def cache_mark(lifetime: int) -> CacheControl | None:
    """Return the mark for a cache that lives so many seconds; None where nothing is cached."""
    if lifetime <= NO_CACHE:
        return None
    return CacheControl(ttl="1h") if lifetime >= ONE_HOUR else CacheControl()


def message_breakpoints(sent: SentMessages, room: int) -> list[Breakpoint]:
    """Return at most `room` breakpoints, and never more than three, in the order of the messages.

    The newest message has priority, then the end of the call before, then the end of the head. If the newest message is
    a request with context blocks, the message before it is used, because the next request begins with it too.
    """
    chosen: dict[Breakpoint, None] = {}
    for place in _places(sent):
        if len(chosen) < room and (block := _last_markable_block(sent, place)) is not None:
            chosen.setdefault(block)
    return sorted(chosen, key=lambda each: (each.message or 0, each.block or 0))


def payload_breakpoints(sent: SentMessages, system: Any, tools: Any, room: int = MAX_MARKS) -> list[Breakpoint]:
    """Return breakpoints of a whole payload: at most `room`, less the marks of its system prompt and tools.

    Without such marks, the first breakpoint ends the system prompt, or else the tools, which all conversations share.
    """
    left = room - count_marks(tools) - count_marks(system)
    first: list[Breakpoint] = []
    # If there is room for one, the newest message is worth more than the shared beginning.
    if left == room and room > 1:
        if (block := markable(system)) is not None:
            first = [Breakpoint("system", None, None if isinstance(system, str) else block)]
        elif isinstance(tools, list) and tools:
            first = [Breakpoint("tools", None, len(tools) - 1)]
    return [*first, *message_breakpoints(sent, max(0, left - len(first)))]


def _places(sent: SentMessages) -> tuple[int, ...]:
    """Return the messages for breakpoints, the most useful first. Negative places mean none."""
    last, head, varying = len(sent.roles) - 1, sent.head - 1, sent.varying
    if varying is None:
        return last, _end_of_last_call(sent.roles), head
    if varying < last:
        return last, varying - 1, head
    earlier = (at for at in reversed(range(varying)) if is_request(sent.roles[at], sent.content(at)))
    return varying - 1, next(earlier, 0) - 1, head


def _end_of_last_call(roles: Sequence[str]) -> int:
    """Return the last message of the call before: the one before its answer or before the newest request."""
    newest, at = roles[-1] if roles else "", len(roles) - 1
    while at >= 0 and roles[at] == newest:
        at -= 1
    while at >= 0 and roles[at] != newest:
        at -= 1
    return at


def _last_markable_block(sent: SentMessages, place: int) -> Breakpoint | None:
    """Return the last block up to the end of a message that may carry a mark."""
    for at in reversed(range(place + 1)):
        content = sent.content(at)
        if (block := markable(content)) is not None:
            return Breakpoint("messages", at, None if isinstance(content, str) else block)
    return None
