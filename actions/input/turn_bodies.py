"""A turn in a body: its messages as every step works on them, and as they were sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from actions.errors import InvalidError, step_into
from actions.input.checks import check_size
from actions.input.strict_json import WITHOUT_SETTINGS, StrictJson
from actions.types.core import ChatTurnIn, ItemsTurnIn, TurnIn
from compaction.messages import (
    INSTRUCTION,
    ITEM,
    OPAQUE,
    TurnFacts,
    blocks,
    find_inner_block,
    is_blank,
    message_facts,
    turn_facts,
)
from compaction.policy import Policy
from compaction.shapes import codecs
from compaction.shapes.acceptance import is_accepted
from compaction.shapes.inner import ShapeError
from compaction.shapes.usage import TokenUsage, UsageError, read_usages
from compaction.shorten.inline_tags import hidden_tokens
from compaction.text.outline import ContextBlock
from compaction.tokens import MOST_TOKENS, json_text
from store.hot_path import SentTurn, Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from actions.input.strict_json import Limits
    from actions.types.core import ContextBlockIn
    from compaction.shapes.inner import InnerMessage

_DEFAULT_POLICY: Final = Policy()
_turn: Final = msgspec.json.Decoder(TurnIn).decode
_CHAT_TURN: Final = msgspec.json.Decoder(ChatTurnIn).decode
_ITEMS_TURN: Final = msgspec.json.Decoder(ItemsTurnIn).decode
_REQUIRED: Final[dict[str, tuple[tuple[str, type], ...]]] = {
    "text": (("text", str),),
    "tool_use": (("id", str), ("name", str), ("input", dict)),
    "tool_result": (("tool_use_id", str),),
    "thinking": (("thinking", str),),
}
_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CLOCKS_DIFFER: Final = timedelta(days=1)
_NOT_EMPTY: Final = {"id", "name", "tool_use_id"}
_JSON_NAMES: Final[dict[type, str]] = {str: "a string", dict: "an object"}


class CachedTokens(NamedTuple):
    """Tokens of a call's input that were read from a prompt cache and written to one; None where nobody says."""

    read: int | None = None
    written: int | None = None


NOT_SAID: Final = CachedTokens()


class Turn(NamedTuple):
    """A turn, ready to be appended: its contents as they came, and everything that is kept about them."""

    contents: list[str]
    facts: TurnFacts
    usage: Usage
    expected_seq: int | None
    replace_from: int | None
    hidden: list[int] | None = None
    """Tokens of each message that inline tool results hide in the view; None for none."""
    context: tuple[ContextBlock, ...] = ()
    sent: SentTurn | None = None
    """What came in another shape than that of the Messages API, as it came."""
    said: tuple[tuple[str, Any], ...] = ()
    """Roles and contents, read, for the ledger of rules."""
    cached: CachedTokens = NOT_SAID
    """What the usage says of the prompt cache."""
    times: tuple[datetime | None, ...] = ()
    """When each message was said, None where nobody knows; empty = when the turn is stored."""
    earlier: tuple[TokenUsage, ...] = ()
    """What was counted for the turn's calls before the last one."""
    requested_output: int | None = None
    """Tokens of output that the call was allowed, where that is said."""


def read_turn(body: bytes, policy: Policy = _DEFAULT_POLICY, strict: StrictJson = WITHOUT_SETTINGS) -> Turn:
    """Return the turn in a body; raise the problem that it has, with a pointer to the field.

    `policy` is the tenant's; its `inline_tool_tags` decide what of the messages counts.
    """
    turn, value = strict.read(body, lambda given, value: (_read(given, value), value), TurnIn)
    check_size(len(turn.messages), strict.limits.turn_messages, "messages", "/messages")
    check_size(len(turn.context), strict.limits.context_blocks, "context blocks", "/context")
    context = _context_blocks(turn.context) if turn.context else ()
    if not isinstance(turn, TurnIn):
        return _of_other_shape(turn, value, policy, strict.limits, context)
    contents: list[str] = []
    facts = []
    *earlier, counted = read_usages("messages", turn.usage)
    hidden: list[int] = []
    tags, limit = policy.inline_tool_tags, policy.tool_result_retention_chars
    for index, (message, given) in enumerate(zip(turn.messages, value["messages"], strict=True)):
        content, pointer = given["content"], f"/messages/{index}/content"
        check_content(content, pointer, strict.limits)
        refuse_inner_blocks(content, pointer)
        if all(map(is_blank, blocks(content))):
            raise InvalidError("A message needs content: text that is not blank, or a block of another type.", pointer)
        contents.append(bytes(message.content).decode())
        facts.append(message_facts(message.role, content))
        if tags:
            hidden.append(hidden_tokens(message.role, content, tags, limit))
    return Turn(
        contents,
        _bounded(turn_facts(facts)),
        usage_of(counted, turn.snapshot_version),
        turn.expected_next_seq,
        turn.replace_from,
        hidden if any(hidden) else None,
        context,
        said=tuple((given["role"], given["content"]) for given in value["messages"]),
        cached=cached_of(counted),
        times=_times(turn),
        earlier=tuple(earlier),
        requested_output=turn.max_output_tokens,
    )


def _read(body: bytes, value: Any) -> TurnIn | ChatTurnIn | ItemsTurnIn:
    """Return a turn in the shape that it names, or can only have."""
    if isinstance(value, dict):
        shape = value.get("shape") or codecs.shape_of(value)
        if shape is not None and shape not in codecs.SHAPES:
            raise InvalidError(f"Expected one of {', '.join(codecs.SHAPES)}.", "/shape")
        if shape in ("chat", "responses"):
            _refuse_stored(value)
            return _ITEMS_TURN(body) if shape == "responses" else _CHAT_TURN(body)
    return _turn(body)


def _refuse_stored(value: Mapping[str, Any]) -> None:
    try:
        codecs.refuse_stored(value)
    except ShapeError as error:
        raise InvalidError(error.detail, step_into("", *error.path)) from None


def _of_other_shape(
    turn: ChatTurnIn | ItemsTurnIn,
    value: Mapping[str, Any],
    policy: Policy,
    limits: Limits,
    context: tuple[ContextBlock, ...],
) -> Turn:
    decoded = [_decoded(turn, message, f"/messages/{index}", limits) for index, message in enumerate(value["messages"])]
    facts = _bounded(codecs.facts_of(decoded))
    if facts.sound and not all(is_accepted(turn.shape, message) for message in value["messages"]):
        facts = facts._replace(sound=False)
    *earlier, counted = _counted(turn, value.get("usage"))
    tags, limit = policy.inline_tool_tags, policy.tool_result_retention_chars
    hidden = [hidden_tokens(message.role, message.content, tags, limit) for message in decoded] if tags else []
    return Turn(
        [json_text(message.content) for message in decoded],
        facts,
        _usage_in_shape(turn, counted, has_thinking=any(message.has_thinking for message in facts.messages)),
        turn.expected_next_seq,
        turn.replace_from,
        hidden if any(hidden) else None,
        context,
        SentTurn(turn.shape, [bytes(message).decode() for message in turn.messages]),
        tuple((message.role, message.content) for message in decoded),
        cached_of(counted),
        _times(turn),
        tuple(earlier),
        turn.max_output_tokens,
    )


def _times(turn: TurnIn | ChatTurnIn | ItemsTurnIn) -> tuple[datetime | None, ...]:
    """Return when each message of a turn was said, as given; raise the problem of a time that cannot be one."""
    given = turn.created_at
    if given is None:
        return ()
    count = len(turn.messages)
    if not isinstance(given, list):
        _check_time(given, "/created_at")
        return (given,) * count
    if len(given) != count:
        raise InvalidError(f"Expected one time for each of the {count} messages.", "/created_at")
    for index, time in enumerate(given):
        if time is not None:
            _check_time(time, f"/created_at/{index}")
    return tuple(given)


def _check_time(time: datetime, pointer: str) -> None:
    if not _EARLIEST <= time <= datetime.now(UTC) + _CLOCKS_DIFFER:
        raise InvalidError("Expected a time from 1970 on that is not over a day ahead.", pointer)


def _bounded(facts: TurnFacts) -> TurnFacts:
    """Return facts; raise the problem that a turn counts more tokens than any could."""
    if sum(message.tokens for message in facts.messages) >= MOST_TOKENS:
        raise InvalidError(
            f"The turn comes to {MOST_TOKENS:,} tokens or more; only smaller ones are taken.", "/messages"
        )
    return facts


def _decoded(turn: ChatTurnIn | ItemsTurnIn, message: Any, pointer: str, limits: Limits) -> InnerMessage:
    if not isinstance(message, dict):
        raise InvalidError("A message is an object.", pointer)
    for field in ("content", "output"):
        if isinstance(parts := message.get(field), list):
            check_size(len(parts), limits.message_blocks, "content parts", f"{pointer}/{field}")
    try:
        return codecs.decode(turn.shape, message)
    except ShapeError as error:
        raise InvalidError(error.detail, step_into(pointer, *error.path)) from None


def _context_blocks(given: Sequence[ContextBlockIn]) -> tuple[ContextBlock, ...]:
    for index, block in enumerate(given):
        if not block.text.strip():
            raise InvalidError("A context block needs text.", f"/context/{index}/text")
    return tuple(ContextBlock(block.source, block.title, block.text) for block in given)


def check_content(content: Any, pointer: str, limits: Limits) -> None:
    """Check a message's content for what every later step relies on; raise the problem that it has."""
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise InvalidError("Expected a string or a list of content blocks.", pointer)
    check_size(len(content), limits.message_blocks, "content blocks", pointer)
    for index, block in enumerate(content):
        _check_block(block, f"{pointer}/{index}")


def refuse_inner_blocks(content: Any, pointer: str) -> None:
    """Raise the problem of a content with a block of the inner form, which only codecs may write."""
    if (path := find_inner_block(content)) is not None:
        raise InvalidError(
            f"The Messages API has no block of type `{INSTRUCTION}` or `{OPAQUE}`, and no block with the key `{ITEM}`."
            " Send what another API's client wrote in its own shape, with `shape`.",
            step_into(pointer, *path),
        )


def _check_block(block: Any, pointer: str) -> None:
    if not isinstance(block, dict):
        raise InvalidError("A content block is an object.", pointer)
    kind = block.get("type")
    if not isinstance(kind, str) or not kind:
        raise InvalidError("A content block needs a `type`.", f"{pointer}/type")
    for field, expected in _REQUIRED.get(kind, ()):
        value = block.get(field)
        if not isinstance(value, expected) or (value == "" and field in _NOT_EMPTY):
            raise InvalidError(f"A {kind} block needs `{field}`: {_JSON_NAMES[expected]}.", f"{pointer}/{field}")


def usage_of(counted: TokenUsage, version: int | None) -> Usage:
    """Return what the API counted for the call that a turn came from."""
    # 0 means that nothing was counted, never that nothing was sent (requirement K2).
    return Usage(counted.input or None, counted.output or 0, version)


def cached_of(counted: TokenUsage) -> CachedTokens:
    """Return what a usage says of the cache: who says what was written has read 0, who says nothing may have read."""
    if counted.cache_read is None and counted.cache_written is None:
        return NOT_SAID
    return CachedTokens(counted.cache_read or 0, counted.cache_written)


def _counted(turn: ChatTurnIn | ItemsTurnIn, usage: Any) -> list[TokenUsage]:
    try:
        return read_usages(turn.shape, usage)
    except UsageError as error:
        raise InvalidError(str(error), step_into("/usage", *error.path)) from None


def _usage_in_shape(turn: ChatTurnIn | ItemsTurnIn, counted: TokenUsage, *, has_thinking: bool) -> Usage:
    """Return what the API counted. Reasoning that is not sent again is no part of the next call."""
    written = counted.output or 0
    return Usage(
        counted.input or None,
        written if has_thinking else max(0, written - counted.reasoning),
        turn.snapshot_version,
    )
