"""What a message is made of: blocks, tool calls and results, and the facts an append keeps about it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from compaction.tokens import content_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

Role = Literal["user", "assistant"]
Block = Mapping[str, Any]
Content = str | list[dict[str, Any]]

_IDENTIFIER: Final = re.compile(r"[a-zA-Z0-9_-]+\Z")
THINKING: Final = frozenset({"thinking", "redacted_thinking"})


def blocks(content: Any) -> list[Block]:
    """Return the blocks of `content`; a string is one text block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content or () if isinstance(block, Mapping)]


def tool_use_ids(content: Any) -> list[str]:
    """Return the ids of the calls that the client must answer, in order (server tools answer themselves)."""
    if isinstance(content, str):
        return []
    return [str(block.get("id")) for block in blocks(content) if block.get("type") == "tool_use"]


def tool_result_ids(content: Any) -> list[str]:
    """Return the ids that the results in `content` answer, in order."""
    if isinstance(content, str):
        return []
    return [str(block.get("tool_use_id")) for block in blocks(content) if block.get("type") == "tool_result"]


def has_tool_results(role: str, content: Any) -> bool:
    """Tell whether a message is a tool-result message (seed 000)."""
    return (
        role == "user"
        and not isinstance(content, str)
        and any(block.get("type") == "tool_result" for block in blocks(content))
    )


def is_request(role: str, content: Any) -> bool:
    """Tell whether a message begins an exchange: from the user, and not only tool results."""
    if role != "user":
        return False
    parts = blocks(content)
    return not parts or any(block.get("type") != "tool_result" for block in parts)


def has_thinking(role: str, content: Any) -> bool:
    """Tell whether an assistant message carries signed thinking."""
    return (
        role == "assistant"
        and not isinstance(content, str)
        and any(block.get("type") in THINKING for block in blocks(content))
    )


def is_blank(block: Block) -> bool:
    """Tell whether the Messages API would refuse `block` as empty text."""
    return block.get("type") == "text" and not str(block.get("text") or "").strip()


def result_text_chars(block: Block) -> int:
    """Return the characters of text in a tool result: its string, or its text blocks; images do not count."""
    content = block.get("content", "")
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):
        return sum(
            len(str(part.get("text") or ""))
            for part in content
            if isinstance(part, dict) and part.get("type") == "text"
        )
    return 0


class MessageFacts(NamedTuple):
    """What the store keeps of a message in columns, so that no later step has to read its content."""

    role: str
    tokens: int
    result_chars: tuple[int, ...]
    """Characters of text of each tool result, in order."""
    is_request: bool
    has_thinking: bool
    calls: tuple[str, ...]
    results: tuple[str, ...]
    sound: bool
    """The Messages API takes it as it is: not empty, blocks where they may stand, results first."""


def message_facts(role: str, content: Any) -> MessageFacts:
    """Return the facts of one message."""
    if isinstance(content, str):
        return MessageFacts(role, content_tokens(content), (), role == "user", False, (), (), bool(content.strip()))
    return MessageFacts(
        role=role,
        tokens=content_tokens(content),
        result_chars=tuple(result_text_chars(block) for block in blocks(content) if block.get("type") == "tool_result"),
        is_request=is_request(role, content),
        has_thinking=has_thinking(role, content),
        calls=tuple(tool_use_ids(content)),
        results=tuple(tool_result_ids(content)),
        sound=_is_sound(role, content),
    )


def _is_sound(role: str, content: Any) -> bool:
    parts = blocks(content)
    if not parts or any(is_blank(block) for block in parts):
        return False
    kinds = [block.get("type") for block in parts]
    if not all(map(_block_is_sound, parts)):
        return False
    if role == "user":
        results = [kind == "tool_result" for kind in kinds]
        return results == sorted(results, reverse=True) and not any(
            kind in THINKING or kind == "tool_use" for kind in kinds
        )
    if "tool_result" in kinds or kinds[-1] in THINKING:
        return False
    calls = [kind == "tool_use" for kind in kinds]
    return calls == sorted(calls) and not any(str(kind).endswith(("server_tool_use", "_tool_result")) for kind in kinds)


def _block_is_sound(block: Block) -> bool:
    if block.get("type") == "tool_use":
        return is_call(block)
    inner = block.get("content") if block.get("type") == "tool_result" else None
    if not isinstance(inner, list):
        return True
    return all(
        isinstance(part, dict) and not is_blank(part) and not (block.get("is_error") and part.get("type") != "text")
        for part in inner
    )


def is_call(block: Block) -> bool:
    """Tell whether a tool call has what the Messages API asks of one."""
    identifier = block.get("id")
    return (
        isinstance(identifier, str)
        and _IDENTIFIER.match(identifier) is not None
        and bool(block.get("name"))
        and isinstance(block.get("input"), Mapping)
    )


class TurnFacts(NamedTuple):
    """What one append has to know of its messages together."""

    messages: tuple[MessageFacts, ...]
    sound: bool
    """Nothing inside the turn needs repair."""
    leading_results: tuple[str, ...]
    """Sorted ids that the first message answers."""
    trailing_calls: tuple[str, ...]
    """Sorted ids that the last message leaves open."""
    has_request: bool
    ends_in_loop: bool
    """The last message is a tool call or a tool result: the model's answer is still to come."""
    thinking_in_loop: bool
    """Signed thinking stands after the turn's last request (anywhere, when it has none)."""
    after_answer: int
    """Index of the first message after the last assistant message: what `usage` cannot have seen."""

    @property
    def has_thinking(self) -> bool:
        """Tell whether any message of the turn carries signed thinking."""
        return any(message.has_thinking for message in self.messages)


def turn_facts(messages: Sequence[MessageFacts]) -> TurnFacts:
    """Return the facts of a turn of at least one message."""
    first, last = messages[0], messages[-1]
    requests = [index for index, message in enumerate(messages) if message.is_request]
    answers = [index for index, message in enumerate(messages) if message.role == "assistant"]
    return TurnFacts(
        messages=tuple(messages),
        sound=all(message.sound for message in messages)
        and all(_unique(message.calls) and _unique(message.results) for message in messages)
        and all(set(before.calls) == set(after.results) for before, after in itertools.pairwise(messages)),
        leading_results=tuple(sorted(first.results)),
        trailing_calls=tuple(sorted(last.calls)),
        has_request=bool(requests),
        ends_in_loop=bool(last.calls) or (bool(last.results) and not last.is_request),
        thinking_in_loop=any(message.has_thinking for message in messages[requests[-1] if requests else 0 :]),
        after_answer=answers[-1] + 1 if answers else 0,
    )


def _unique(ids: Sequence[str]) -> bool:
    return len(set(ids)) == len(ids)
