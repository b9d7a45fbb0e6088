"""Where breakpoints of the prompt cache belong in a request of the Messages API: the next call reads what they end.

A breakpoint depends on what stands up to it and on where calls ended, on nothing else: while the head is the same, the
next context has those of the head's end and of the last call where they were, with the same bytes before them.
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
    """A block that a mark belongs on: the `block` of a `message`, of the system prompt or of the list of tools.

    Without a `block` the content is a text, which the API takes as one text block.
    """

    field: Literal["tools", "system", "messages"]
    message: int | None
    block: int | None


class SentMessages(NamedTuple):
    """Messages as they are served: their roles, and the content of each where it is asked for."""

    roles: Sequence[str]
    content: Callable[[int], Any]
    head: int = 0
    """How many of them are the snapshot's; the others came after it."""
    varying: int | None = None
    """The request that context blocks stand in: with the next request they are others, or gone."""


def of_json(messages: bytes, head: int) -> SentMessages:
    """Return messages from their JSON text; of their contents only those that are looked at are parsed."""
    rows = _rows(messages)
    return SentMessages([row.role for row in rows], lambda at: _value(rows[at].content), head)


class CacheControl(msgspec.Struct):
    """A mark for the prompt cache as the Messages API takes it; `ttl` where its longer life is in use."""

    type: Literal["ephemeral"] = "ephemeral"
    ttl: Literal["1h"] | msgspec.UnsetType = msgspec.UNSET


def mark(lifetime: int) -> CacheControl | None:
    """Return the mark for a cache that lives so many seconds; None where nothing is cached."""
    if lifetime <= NO_CACHE:
        return None
    return CacheControl(ttl="1h") if lifetime >= ONE_HOUR else CacheControl()


def in_messages(sent: SentMessages, room: int) -> list[Breakpoint]:
    """Return at most `room` breakpoints, three at the most, in the order of the messages.

    The newest message comes first, then the one that the call before ended with, then the end of the head. Where the
    newest is a request with context blocks, its place takes what is before it, which the next request begins with too.
    """
    chosen: dict[Breakpoint, None] = {}
    for place in _places(sent):
        if len(chosen) < room and (block := _at_or_before(sent, place)) is not None:
            chosen.setdefault(block)
    return sorted(chosen, key=lambda each: (each.message or 0, each.block or 0))


def in_payload(sent: SentMessages, system: Any, tools: Any, room: int = MAX_MARKS) -> list[Breakpoint]:
    """Return breakpoints of a whole payload: at most `room`, less the marks that system prompt and tools have.

    Where they have none, the first ends the system prompt, or else the tools: every conversation begins with these.
    """
    left = room - count_marks(tools) - count_marks(system)
    first: list[Breakpoint] = []
    # The newest message is worth more than what is shared, should there be room for one alone.
    if left == room and room > 1:
        if (block := markable(system)) is not None:
            first = [Breakpoint("system", None, None if isinstance(system, str) else block)]
        elif isinstance(tools, list) and tools:
            first = [Breakpoint("tools", None, len(tools) - 1)]
    return [*first, *in_messages(sent, max(0, left - len(first)))]


def _places(sent: SentMessages) -> tuple[int, ...]:
    """Return the messages that breakpoints belong on, the most useful first; below 0 for none."""
    last, head, varying = len(sent.roles) - 1, sent.head - 1, sent.varying
    if varying is None:
        return last, _call_before(sent.roles), head
    if varying < last:
        return last, varying - 1, head
    earlier = (at for at in reversed(range(varying)) if is_request(sent.roles[at], sent.content(at)))
    return varying - 1, next(earlier, 0) - 1, head


def _call_before(roles: Sequence[str]) -> int:
    """Return the message that the call before ended with: the one before what this one has been answered, or asked."""
    newest, at = roles[-1] if roles else "", len(roles) - 1
    while at >= 0 and roles[at] == newest:
        at -= 1
    while at >= 0 and roles[at] != newest:
        at -= 1
    return at


def _at_or_before(sent: SentMessages, place: int) -> Breakpoint | None:
    """Return the last block up to the end of a message that may carry a mark."""
    for at in reversed(range(place + 1)):
        content = sent.content(at)
        if (block := markable(content)) is not None:
            return Breakpoint("messages", at, None if isinstance(content, str) else block)
    return None
