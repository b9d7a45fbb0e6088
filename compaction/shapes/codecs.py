"""The shapes by name: which one a turn has, what its messages are in the inner form, how a view is served in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import msgspec

from compaction.messages import MessageFacts, TurnFacts, blocks, message_facts, turn_facts
from compaction.shapes import chat, messages, responses
from compaction.shapes.acceptance import repair_message
from compaction.shapes.inner import InnerMessage, LeftOut, SentMessage, Shape, ShapeError
from compaction.tokens import json_text

if TYPE_CHECKING:
    from compaction.view import ViewMessage

SHAPES: Final[tuple[Shape, ...]] = get_args(Shape)

NOTHING: Final = "(Nothing of this conversation has a counterpart here.)"
_DECODE: Final = {"chat": chat.decode, "responses": responses.decode}
_CHAT_ROLES: Final = frozenset({"system", "developer", "tool", "function"})
_CHAT_KEYS: Final = frozenset({"name", "tool_calls", "tool_call_id", "function_call", "refusal", *chat.REASONING})
_CHAT_PARTS: Final = frozenset({"image_url", "input_audio", "refusal"})
_ITEM_PARTS: Final = frozenset({"input_text", "output_text", "input_image", "input_file", "computer_screenshot"})
_MESSAGES_BLOCKS: Final = ("tool_use", "tool_result")
"""What Chat Completions has no part for. Compared one by one: any JSON value may stand in their place."""
_STORED: Final = ("previous_response_id", "conversation")


class EncodedPayload(NamedTuple):
    """What is served: messages or items, and what of the conversation has no counterpart in their shape."""

    messages: list[Any]
    left_out: list[LeftOut]
    repaired: Sequence[int] = ()
    """Seqs of messages that are served repaired, though no other warning says so."""


def shape_of(given: Mapping[str, Any]) -> Shape | None:
    """Return the shape that a turn can only have, by its messages and its usage; None where it may be any."""
    every = given.get("messages")
    kinds = {kind for each in (every if isinstance(every, list) else ()) if (kind := _shape_of_message(each))}
    usage = given.get("usage")
    if isinstance(usage, list) and usage:
        usage = usage[-1]
    if not kinds and isinstance(usage, Mapping):
        if "prompt_tokens" in usage:
            return "chat"
        if "input_tokens_details" in usage or "output_tokens_details" in usage:
            return "responses"
    if kinds == {"chat"} and isinstance(every, list) and any(map(_has_blocks_of_messages, every)):
        # A system message amid those of the Messages API, which newer models take: as chat its calls would be lost.
        return None
    # An item is never a message of another shape; a role of Chat Completions may be that of an item.
    return next((shape for shape in ("responses", "chat") if shape in kinds), None)


def _has_blocks_of_messages(message: Any) -> bool:
    parts = message.get("content") if isinstance(message, Mapping) else None
    return any(part.get("type") in _MESSAGES_BLOCKS for part in blocks(parts))


def _shape_of_message(message: Any) -> Literal["chat", "responses"] | None:
    if not isinstance(message, Mapping):
        return None
    parts = message.get("content")
    given = [part.get("type") for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
    kinds = {kind for kind in given if isinstance(kind, str)}
    # An answer of the Messages API has the type of an item, and parts that no item has.
    is_message = message.get("type") == "message" and kinds <= {"refusal"}
    if is_message or ("type" in message and "role" not in message) or not kinds.isdisjoint(_ITEM_PARTS):
        return "responses"
    has_chat_part = not kinds.isdisjoint(_CHAT_PARTS) or (parts is None and "content" in message)
    role = message.get("role")
    if (isinstance(role, str) and role in _CHAT_ROLES) or has_chat_part or not _CHAT_KEYS.isdisjoint(message):
        return "chat"
    return None


def decode(shape: Shape, message: Mapping[str, Any]) -> InnerMessage:
    """Return a message or an item in the inner form. Raises ShapeError; not for `messages`, whose form it is."""
    return _DECODE[shape](message)


def refuse_stored(turn: Mapping[str, Any]) -> None:
    """Raise ShapeError for a turn that refers to what only the provider stores."""
    for name in _STORED:
        if name in turn:
            raise ShapeError(
                f"`{name}` names what only the provider stores: send the turn's items themselves, input and output,"
                ' with `store: false` and `include: ["reasoning.encrypted_content"]` where the model reasons.',
                name,
            )


def read_sent(text: str, shape: Shape) -> SentMessage:
    """Return a stored message as it is served: as it was sent, or repaired if the API of its shape refuses that."""
    return served_message(msgspec.json.decode(text), shape, text)


def served_message(value: dict[str, Any], shape: Shape, text: str, *, declared: str = "") -> SentMessage:
    """Return a message, of which `text` is the JSON text, as it is served; for `declared` see `repair_message`.

    Raises ShapeError.
    """
    repaired = repair_message(shape, value, declared=declared)
    if repaired is value:
        return SentMessage(text, value, decode(shape, value))
    decoded = decode(shape, repaired)
    return SentMessage(json_text(repaired), repaired, decoded, is_repaired=decode(shape, value) == decoded)


def facts_of(turn: Sequence[InnerMessage]) -> TurnFacts:
    """Return the facts of a turn in which neighbours of one role belong together: items of an answer, its results."""
    facts = turn_facts([message_facts(role, content) for role, content in turn])
    if all(before.role != after.role for before, after in pairwise(turn)):
        return facts
    runs = [_facts_together(list(run)) for _, run in groupby(turn, key=lambda message: message.role)]
    together = turn_facts(runs)
    return facts._replace(
        sound=together.sound,
        leading_results=together.leading_results,
        trailing_calls=together.trailing_calls,
        ends_in_loop=together.ends_in_loop,
    )


def _facts_together(run: Sequence[InnerMessage]) -> MessageFacts:
    if len(run) == 1:
        return message_facts(*run[0])
    parts = [part for each in run for part in _blocks(each.content)]
    return message_facts(run[0].role, parts)


def _blocks(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def encode(shape: Shape, view: Sequence[ViewMessage], sent: Mapping[int, SentMessage]) -> EncodedPayload:
    """Return a view in a shape; `sent` has what was sent in that shape, by seq (for `messages` nothing)."""
    match shape:
        case "messages":
            encoded, left_out = messages.encode(view)
        case "chat":
            encoded, left_out = chat.encode(view, sent)
        case "responses":
            encoded, left_out = responses.encode(view, sent)
    return EncodedPayload(encoded or [{"role": "user", "content": NOTHING}] * bool(view), _group_by_kind(left_out))


def _group_by_kind(left_out: Sequence[LeftOut]) -> list[LeftOut]:
    """Return what was left out by what it is, its seqs together."""
    seqs: dict[str, set[int]] = {}
    for each in left_out:
        seqs.setdefault(each.what, set()).update(each.seqs)
    return [LeftOut(tuple(sorted(seq for seq in every if seq >= 0)), what) for what, every in seqs.items()]
