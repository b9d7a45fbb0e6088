"""Reading bodies: strict JSON into types, and a turn's messages into facts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeVar

import msgspec

from api.http.problems import invalid, step_into
from api.http.strict_json import WITHOUT_SETTINGS, StrictJson
from api.schema.types import TurnIn
from compaction.messages import TurnFacts, blocks, is_blank, message_facts, turn_facts
from compaction.overrides import in_force
from compaction.policy import FIELDS, MINIMUM_CONTEXT_WINDOW, Policy, PolicyError, merge
from compaction.presets import AUTO, LARGEST_CONTEXT_WINDOW, preset, window_named
from compaction.shorten.inline_tags import hidden_tokens
from compaction.text.outline import ContextBlock
from compaction.windows import window_of, window_warning
from store.hot_path import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from litestar import Request

    from api.http.strict_json import Limits
    from api.schema.types import ContextBlockIn

T = TypeVar("T")
P = ParamSpec("P")

LARGE_BYTES: Final = 256 * 1024
"""Bytes from which on reading them can take tens of milliseconds."""
_DEFAULT_POLICY: Final = Policy()
_turn: Final = msgspec.json.Decoder(TurnIn).decode
_REQUIRED: Final[dict[str, tuple[tuple[str, type], ...]]] = {
    "text": (("text", str),),
    "tool_use": (("id", str), ("name", str), ("input", dict)),
    "tool_result": (("tool_use_id", str),),
    "thinking": (("thinking", str),),
}
_NOT_EMPTY: Final = {"id", "name", "tool_use_id"}
_JSON_NAMES: Final[dict[type, str]] = {str: "a string", dict: "an object"}


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


async def aside(size: int, compute: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `compute` makes of `size` bytes; megabytes take their time, on a thread that answers nobody else."""
    if size < LARGE_BYTES:
        return compute(*args, **kwargs)
    return await asyncio.to_thread(compute, *args, **kwargs)


async def read_body(request: Request[Any, Any, Any], kind: type[T], *, if_empty: bytes = b"") -> T:
    """Return a request's body as `kind`; raise the problem that it has."""
    body = await request.body() or if_empty
    return await aside(len(body), read, body, kind, request.app.state.services.strict)


def read(body: bytes, kind: type[T], strict: StrictJson = WITHOUT_SETTINGS) -> T:
    """Return a body as `kind`; raise the problem that it has."""
    return strict.read(body, lambda given: msgspec.json.decode(given, type=kind))[0]


def read_turn(body: bytes, policy: Policy = _DEFAULT_POLICY, strict: StrictJson = WITHOUT_SETTINGS) -> Turn:
    """Return the turn in a body; raise the problem that it has, with a pointer to the field.

    `policy` is the tenant's; its `inline_tool_tags` decide what of the messages counts.
    """
    turn, value = strict.read(body, _turn)
    check_size(len(turn.messages), strict.limits.turn_messages, "messages", "/messages")
    check_size(len(turn.context), strict.limits.context_blocks, "context blocks", "/context")
    contents: list[str] = []
    facts = []
    hidden: list[int] = []
    tags, limit = policy.inline_tool_tags, policy.tool_result_retention_chars
    for index, (message, given) in enumerate(zip(turn.messages, value["messages"], strict=True)):
        content, pointer = given["content"], f"/messages/{index}/content"
        check_content(content, pointer, strict.limits)
        if all(map(is_blank, blocks(content))):
            raise invalid("A message needs content: text that is not blank, or a block of another type.", pointer)
        contents.append(bytes(message.content).decode())
        facts.append(message_facts(message.role, content))
        if tags:
            hidden.append(hidden_tokens(message.role, content, tags, limit))
    return Turn(
        contents,
        turn_facts(facts),
        usage_of(turn),
        turn.expected_next_seq,
        turn.replace_from,
        hidden if any(hidden) else None,
        _context_blocks(turn.context) if turn.context else (),
    )


def _context_blocks(given: Sequence[ContextBlockIn]) -> tuple[ContextBlock, ...]:
    for index, block in enumerate(given):
        if not block.text.strip():
            raise invalid("A context block needs text.", f"/context/{index}/text")
    return tuple(ContextBlock(block.source, block.title, block.text) for block in given)


def check_content(content: Any, pointer: str, limits: Limits) -> None:
    """Check a message's content for what every later step relies on; raise the problem that it has."""
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise invalid("Expected a string or a list of content blocks.", pointer)
    check_size(len(content), limits.message_blocks, "content blocks", pointer)
    for index, block in enumerate(content):
        _check_block(block, f"{pointer}/{index}")


def check_metadata(metadata: Any, limits: Limits) -> None:
    """Check the size of a conversation's metadata; raise the problem that it has."""
    if metadata and len(msgspec.json.encode(metadata)) > limits.metadata_bytes:
        raise invalid(f"Metadata has at most {limits.metadata_bytes:,} bytes as JSON.", "/metadata")


def read_policy(overrides: Mapping[str, Any], *below: Mapping[str, Any]) -> None:
    """Check a policy's overrides; raise the problem, with a pointer to the key."""
    try:
        merge(*below, overrides)
    except PolicyError as error:
        raise invalid(error.detail, step_into("/policy", *error.path)) from None


def read_overrides(
    overrides: Mapping[str, Any], named: str | int | None, *below: Mapping[str, Any], model: str | None = None
) -> dict[str, Any]:
    """Return the overrides that a body sets: those of the preset it names, and over them its own.

    `below` are the layers they are laid over, `model` is the conversation's. Raises the problem that preset or policy
    has.
    """
    chosen = {**_preset(overrides, named, *below, model=model), **overrides}
    read_policy(chosen, *below)
    return chosen


def read_changes(
    changes: Mapping[str, Any] | None,
    named: str | int | None,
    stored: Mapping[str, Any],
    *below: Mapping[str, Any],
    model: str | None = None,
) -> dict[str, Any]:
    """Return the `stored` overrides as a body changes them, key by key: null takes one away, null for all takes all.

    What is stored and not in force, since a layer below has changed, is no reason to refuse another change. The rest is
    as in `read_overrides`.
    """
    wanted = {key: value for key, value in (changes or {}).items() if value is not None}
    new = {**_preset(wanted, named, *below, model=model), **(changes or {})}
    for key in new:
        if key not in FIELDS and key not in stored:
            raise invalid(f"unknown policy key {key!r}", step_into("/policy", key))
    old = {} if changes is None else {key: value for key, value in stored.items() if key not in new}
    set_now = {key: value for key, value in new.items() if value is not None}
    holds = in_force(*below, old).overrides
    read_policy({**{key: value for key, value in old.items() if holds.get(key) == value}, **set_now}, *below)
    return {**old, **set_now}


def read_model(model: str | None, *layers: Mapping[str, Any]) -> None:
    """Check the window of a model where no layer of policy overrides states it; raise the problem that it has."""
    if model is None or any("model_context_tokens" in layer for layer in layers):
        return
    window = window_of(model, MINIMUM_CONTEXT_WINDOW)
    if not MINIMUM_CONTEXT_WINDOW <= window <= LARGEST_CONTEXT_WINDOW:
        detail = window_warning(window) or f"a context window of {window:,} tokens is no model's"
        raise invalid(f"{detail}; policy.model_context_tokens can state another", "/model")


def _preset(
    overrides: Mapping[str, Any], named: str | int | None, *below: Mapping[str, Any], model: str | None
) -> dict[str, int]:
    if named is None:
        return {}
    if named == AUTO:
        window: int | None = in_force(*below, overrides, model=model).policy.model_context_tokens
    else:
        window = window_named(str(named))
    if window is None:
        raise invalid("Expected auto, a number of tokens, or a model whose window is known.", "/policy_preset")
    try:
        return preset(window)
    except PolicyError as error:
        raise invalid(error.detail, "/policy_preset") from None


def _check_block(block: Any, pointer: str) -> None:
    if not isinstance(block, dict):
        raise invalid("A content block is an object.", pointer)
    kind = block.get("type")
    if not isinstance(kind, str) or not kind:
        raise invalid("A content block needs a `type`.", f"{pointer}/type")
    for field, expected in _REQUIRED.get(kind, ()):
        value = block.get(field)
        if not isinstance(value, expected) or (value == "" and field in _NOT_EMPTY):
            raise invalid(f"A {kind} block needs `{field}`: {_JSON_NAMES[expected]}.", f"{pointer}/{field}")


def check_size(size: int, most: int, what: str, pointer: str) -> None:
    """Raise the problem of too many of something."""
    if size > most:
        raise invalid(f"At most {most:,} {what}.", pointer)


def usage_of(turn: TurnIn) -> Usage:
    """Return what the API counted for the call that a turn came from."""
    usage = turn.usage
    if usage is None:
        return Usage(None, 0, turn.snapshot_version)
    read_tokens = (
        (usage.input_tokens or 0) + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    )
    # 0 means that nothing was counted, never that nothing was sent (requirement K2).
    return Usage(read_tokens or None, usage.output_tokens or 0, turn.snapshot_version)
