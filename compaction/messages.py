"""What a message is made of: blocks, tool calls and results, and the facts an append keeps about it."""

from __future__ import annotations

import hashlib
import itertools
import operator
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compaction.media.limits import NO_MEDIA, MediaLoad, media_load
from compaction.text.malformed import MEDIA, read_arguments, repair_media, tool_name
from compaction.tokens import content_tokens, json_text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

Block = Mapping[str, Any]
Content = str | list[dict[str, Any]]

THINKING: Final = frozenset({"thinking", "redacted_thinking"})
SERVER_CALLS: Final = frozenset({"server_tool_use", "mcp_tool_use"})
CALLS: Final = SERVER_CALLS | {"tool_use"}

INSTRUCTION: Final = "instruction"
"""Type of the block that stands for a system or developer message among the others: `{"type", "text", "by"}`."""
OPAQUE: Final = "opaque"
"""Type of the block that stands for what only the shape it was sent in has: `{"type", "of", "text", "size"}`."""
ITEM: Final = "item"
"""Key of a block that was sent as an item of its own, with the item's type: its place among others is the API's."""

CALLER: Final = "caller"
"""Key of who made a tool call: an object that names by `tool_id` the server tool's call whose code made it."""

CACHE_MARK: Final = "cache_control"
"""Key of a mark for the prompt cache, on a block or a tool."""

_MAPPING: Final = (dict, Mapping)
"""`Mapping` alone would do; a dict is found five times faster so."""
_RESULT: Final = ("tool_result",)
_IDENTIFIER: Final = re.compile(r"[a-zA-Z0-9_-]{1,512}\Z")
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
_SUMMARY_FIELDS: Final = frozenset(
    {"type", "content", "signature", "encrypted_content", "tool_changes", "cache_control"}
)
_ASSISTANT_ONLY: Final = THINKING | CALLS
_ASKS_NOTHING: Final = frozenset({"tool_result", INSTRUCTION})
_USER_ONLY: Final = MEDIA | {"tool_result"}


def blocks(content: Any) -> list[Block]:
    """Return the blocks of `content`; a string is one text block, and what is no list has none."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, _MAPPING)] if isinstance(content, list) else []


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
    """Return whether a message is a tool-result message (requirement T3)."""
    return role == "user" and isinstance(content, list) and _holds(content, _RESULT)


def is_request(role: str, content: Any) -> bool:
    """Return whether a message begins an exchange: from the user, and not only tool results or instructions."""
    if role != "user":
        return False
    if not isinstance(content, list):
        return True
    others = 0
    for block in content:
        if isinstance(block, _MAPPING):
            if block.get("type") not in _ASKS_NOTHING:
                return True
            others += 1
    return not others


def is_instruction(role: str, content: Any) -> bool:
    """Return whether a message is a system or developer message, whatever compaction put after its text."""
    return role == "user" and isinstance(content, list) and bool(content) and content[0].get("type") == INSTRUCTION


def is_of_other_shape(block: Block) -> bool:
    """Return whether a block is none of the Messages API's, but stands for something of another one's."""
    return ITEM in block or block.get("type") in (INSTRUCTION, OPAQUE)  # any JSON value may stand there


def find_inner_block(content: Any) -> tuple[str | int, ...] | None:
    """Return the path in `content` to the first block that only a codec may write, None if there is none.

    Such blocks stand for parts of other shapes: an `instruction` is served as a system message. A client that could
    write one would speak with the system's voice.
    """
    if not isinstance(content, list):
        return None
    for index, block in enumerate(content):
        if not isinstance(block, dict):
            continue
        if is_of_other_shape(block):
            return (index,)
        source = block.get("source")
        for path, inner in (
            (("content",), block.get("content")),
            (("source", "content"), source.get("content") if isinstance(source, dict) else None),
        ):
            if isinstance(inner, list) and (found := find_inner_block(inner)) is not None:
                return (index, *path, *found)
    return None


def disarm_inner_blocks(content: Any) -> Any:
    """Return `content` with nothing in it that only a codec may write; the same object if there is none.

    The key `item` is left out. A block of an inner type becomes one of an unknown type: `{"type": "instruction", …}`
    becomes `{"type": "unknown_instruction", …}`, which no other shape has a counterpart of, and which states no rule.
    """
    if find_inner_block(content) is None:
        return content
    return [_disarm(block) for block in content]


def _disarm(block: Any) -> Any:
    if not isinstance(block, dict):
        return block
    block = {name: value for name, value in block.items() if name != ITEM}
    if block.get("type") in (INSTRUCTION, OPAQUE):
        block["type"] = f"unknown_{block['type']}"
    if "content" in block:
        block["content"] = disarm_inner_blocks(block["content"])
    if isinstance(source := block.get("source"), dict) and "content" in source:
        block["source"] = {**source, "content": disarm_inner_blocks(source["content"])}
    return block


def has_thinking(role: str, content: Any) -> bool:
    """Return whether an assistant message carries signed thinking."""
    return role == "assistant" and isinstance(content, list) and _holds(content, THINKING)


def _holds(content: list[Any], kinds: Collection[str]) -> bool:
    for block in content:  # noqa: SIM110 - a generator costs three times as much, and steps ask this of every message
        if isinstance(block, _MAPPING) and block.get("type") in kinds:
            return True
    return False


def count_marks(content: Any) -> int:
    """Return how many marks tools, a system prompt or a content have, those inside results and documents too."""
    if not isinstance(content, list):
        return 0
    count = 0
    for block in content:
        if isinstance(block, dict):
            if block.get(CACHE_MARK) is not None:
                count += 1
            # Without lists between: appending counts every block.
            if isinstance(inner := block.get("content"), list):
                count += count_marks(inner)
            if isinstance(source := block.get("source"), dict):
                count += count_marks(source.get("content"))
    return count


def is_blank(block: Block) -> bool:
    """Return whether the Messages API would refuse `block` as empty text."""
    return block.get("type") == "text" and not str(block.get("text") or "").strip()


def is_call(block: Block) -> bool:
    """Return whether a tool call has what the Messages API asks of one."""
    identifier, name = block.get("id"), block.get("name")
    return (
        isinstance(identifier, str)
        and _IDENTIFIER.match(identifier) is not None
        and isinstance(name, str)
        and _NAME.match(name) is not None
        and isinstance(block.get("input"), _MAPPING)
    )


def is_signed_summary(block: Block) -> bool:
    """Return whether `block` is a summary that the API wrote and signed: a `compaction` block made on demand.

    It stands for everything before it, so the API takes it as the first block of a conversation alone. The blocks of
    its threshold compaction have no signature and may be anywhere.
    """
    return (
        block.get("type") == "compaction"
        and isinstance(block.get("signature"), str)
        and isinstance(block.get("content"), str)
    )


def is_server_result(block: Block) -> bool:
    """Return whether `block` is the result of a tool that the API itself called."""
    kind = block.get("type")
    return isinstance(kind, str) and kind != "tool_result" and kind.endswith("_tool_result")


def calling_tool(block: Block) -> str | None:
    """Return the id of the server tool's call that made a tool call, None if the model made it itself."""
    caller = block.get(CALLER)
    if block.get("type") != "tool_use" or not isinstance(caller, _MAPPING):
        return None
    identifier = caller.get("tool_id")
    return identifier if isinstance(identifier, str) else None


def acceptable(role: str, block: Any) -> dict[str, Any] | None:
    """Return `block` as the Messages API takes it in a message of `role`: itself, a mended copy, or None.

    What is around it is not considered.
    """
    if not isinstance(block, dict) or not isinstance(kind := block.get("type"), str):
        return None
    if kind == "text":
        return block if _is_said(block) else None
    if kind == "tool_result":
        return None if role == "assistant" else _acceptable_result(block)
    if kind in _USER_ONLY if role == "assistant" else kind in _ASSISTANT_ONLY or is_server_result(block):
        return None
    if kind == "tool_use":
        return block if is_call(block) else _acceptable_call(block)
    return repair_media(block) if _is_whole(block) else None


def _is_said(block: Block) -> bool:
    text = block.get("text")
    return isinstance(text, str) and text != "" and not text.isspace()


def _is_whole(block: Block) -> bool:
    """Return whether a block has the fields that the Messages API asks of its type."""
    match block["type"]:
        case "text":
            return _is_said(block)
        case "thinking":
            return isinstance(block.get("thinking"), str) and isinstance(block.get("signature"), str)
        case "redacted_thinking":
            return isinstance(block.get("data"), str)
        case kind if kind in CALLS:
            return is_call(block)
        case kind if kind in MEDIA:
            return isinstance(block.get("source"), Mapping)
        case kind:
            return kind != "compaction" or _is_summary(block)


def _is_summary(block: Block) -> bool:
    """Return whether the Messages API takes a `compaction` block as it is; it refuses unknown fields in one."""
    content, signature = block.get("content"), block.get("signature")
    return (
        _SUMMARY_FIELDS.issuperset(block)
        and (content is None or (isinstance(content, str) and content != ""))
        and (signature is None or isinstance(signature, str))
    )


def _acceptable_call(block: dict[str, Any]) -> dict[str, Any] | None:
    """Return a call with an id, a name and arguments that the Messages API takes; None for one without an id."""
    identifier = block.get("id")
    if not (isinstance(identifier, str) and identifier):
        return None
    given = block.get("input")
    return {
        **block,
        "id": call_id(identifier),
        "name": tool_name(block.get("name")),
        "input": given if isinstance(given, _MAPPING) else read_arguments(given),
    }


def call_id(identifier: str, most: int = 512) -> str:
    """Return a call's id as the Messages API takes one, of so many characters at most; two ids stay two."""
    if _IDENTIFIER.match(identifier) and len(identifier) <= most:
        return identifier
    return f"call_{hashlib.sha256(identifier.encode()).hexdigest()[:32]}"


def _acceptable_result(block: dict[str, Any]) -> dict[str, Any] | None:
    identifier = block.get("tool_use_id")
    if not isinstance(identifier, str):
        return None
    if not _IDENTIFIER.match(identifier):
        return _acceptable_result({**block, "tool_use_id": call_id(identifier)})
    inner = block.get("content", "")
    if isinstance(inner, str):
        return block
    if not isinstance(inner, list):
        return {**block, "content": "" if inner is None else json_text(inner)}
    # The API takes only text in an error.
    kept = [part for part in inner if _is_result_part(part) and not (block.get("is_error") and part["type"] != "text")]
    parts = [repair_media(part) for part in kept]
    is_same = len(parts) == len(inner) and all(map(operator.is_, parts, inner))
    return block if is_same else {**block, "content": parts}


def _is_result_part(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and isinstance(kind := part.get("type"), str)
        and kind not in _ASSISTANT_ONLY
        and not kind.endswith("tool_result")
        and _is_whole(part)
    )


def result_text_chars(block: Block) -> int:
    """Return the characters of text in a tool result: its string, or its text blocks; images do not count."""
    content = block.get("content", "")
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):
        return sum(
            [
                len(str(part.get("text") or ""))
                for part in content
                if isinstance(part, dict) and part.get("type") == "text"
            ]
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
    """The Messages API takes it as it is: not empty, blocks where they may be, results first.

    Nor has it marks for the prompt cache: with those of others they may be too many.
    """
    media: MediaLoad = NO_MEDIA
    """Its images and files."""


def message_facts(role: str, content: Any) -> MessageFacts:
    """Return the facts of one message."""
    if isinstance(content, str):
        return MessageFacts(role, content_tokens(content), (), role == "user", False, (), (), bool(content.strip()))
    parts = list(content or ())
    taken = [acceptable(role, part) for part in parts]
    # Only calls and results that repair leaves in place can be each other's partners.
    staying = [part for part in taken if part is not None]
    return MessageFacts(
        role=role,
        tokens=content_tokens(content),
        result_chars=tuple(result_text_chars(block) for block in blocks(content) if block.get("type") == "tool_result"),
        is_request=is_request(role, content),
        has_thinking=has_thinking(role, content),
        calls=tuple(tool_use_ids(staying)),
        results=tuple(tool_result_ids(staying)),
        sound=bool(parts)
        and all(new is old for new, old in zip(taken, parts, strict=True))
        and not any(map(is_signed_summary, staying))
        and not count_marks(parts)
        and (_in_order(role, staying) or _items_in_order(staying)),
        media=media_load((content,)),
    )


def _in_order(role: str, parts: Sequence[Block]) -> bool:
    """Return whether results begin a user message, and calls end an assistant's; server tools are left to repair."""
    kinds = [part["type"] for part in parts]
    if role == "user":
        results = [kind == "tool_result" for kind in kinds]
        return results == sorted(results, reverse=True)
    if any(calling_tool(block) is not None for block in parts):
        return False
    if kinds[-1] in THINKING or any(kind in SERVER_CALLS or kind.endswith("_tool_result") for kind in kinds):
        return False
    calls = [kind == "tool_use" for kind in kinds]
    return calls == sorted(calls)


def _items_in_order(parts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether parts are those of items, which have no order but that something follows reasoning."""
    return any(ITEM in part for part in parts) and parts[-1]["type"] not in THINKING


class TurnFacts(NamedTuple):
    """What one append has to know of its messages together."""

    messages: tuple[MessageFacts, ...]
    sound: bool
    """Nothing inside the turn needs repair."""
    leading_results: tuple[str, ...]
    """Sorted ids that the first message answers."""
    trailing_calls: tuple[str, ...]
    """Sorted ids that the last message leaves open."""
    ends_in_loop: bool
    """The last message is a tool call or a tool result: the model's answer is still to come."""
    thinking_in_loop: bool
    """Signed thinking comes after the turn's last request (anywhere, when it has none)."""
    exchanges: int
    """How many requests the turn has."""
    last_request: int
    """Index of its last request, -1 for none."""
    newest_result: int
    """Index of the last tool-result message, -1 for none."""
    after_answer: int
    """Index of the first message after the last assistant message: what `usage` cannot have seen."""

    @property
    def has_request(self) -> bool:
        """Return whether the turn begins an exchange."""
        return self.last_request >= 0

    @property
    def has_thinking(self) -> bool:
        """Return whether any message of the turn carries signed thinking."""
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
        ends_in_loop=bool(last.calls) or (bool(last.results) and not last.is_request),
        thinking_in_loop=any(message.has_thinking for message in messages[requests[-1] if requests else 0 :]),
        exchanges=len(requests),
        last_request=requests[-1] if requests else -1,
        newest_result=max((index for index, message in enumerate(messages) if message.results), default=-1),
        after_answer=answers[-1] + 1 if answers else 0,
    )


def _unique(ids: Sequence[str]) -> bool:
    return len(set(ids)) == len(ids)
