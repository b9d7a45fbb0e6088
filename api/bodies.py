"""Reading bodies: strict JSON into types, and a turn's messages into facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from api.problems import ProblemError, from_msgspec, invalid, step_into
from api.types import TurnIn
from compaction.inline_tags import hidden_tokens
from compaction.messages import TurnFacts, message_facts, turn_facts
from compaction.outline import ContextBlock
from compaction.overrides import in_force
from compaction.policy import MINIMUM_CONTEXT_WINDOW, Policy, PolicyError, merge
from compaction.presets import AUTO, LARGEST_CONTEXT_WINDOW, preset, window_named
from compaction.windows import window_of, window_warning
from store.hot_path import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from api.types import ContextBlockIn

T = TypeVar("T")

MAX_DEPTH: Final = 200
"""Levels of nesting in a body. Decoding costs Python's stack a frame a level, and workers begin deeper in it."""
_NUL: Final = b"\\u0000"

_DEFAULT_POLICY: Final = Policy()
_turn: Final = msgspec.json.Decoder(TurnIn).decode
_decode: Final = msgspec.json.Decoder().decode
_REQUIRED: Final[dict[str, tuple[tuple[str, type], ...]]] = {
    "text": (("text", str),),
    "tool_use": (("id", str), ("name", str), ("input", dict)),
    "tool_result": (("tool_use_id", str),),
    "thinking": (("thinking", str),),
}
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


def read(body: bytes, kind: type[T]) -> T:
    """Return a body as `kind`; raise the problem that it has."""
    try:
        value = msgspec.json.decode(body, type=kind)
        if _needs_a_look(body):
            _look(_decode(body), "")
    except msgspec.ValidationError as error:
        raise from_msgspec(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(error) from None
    return value


def read_turn(body: bytes, policy: Policy = _DEFAULT_POLICY) -> Turn:
    """Return the turn in a body; raise the problem that it has, with a pointer to the field.

    `policy` is the tenant's; its `inline_tool_tags` decide what of the messages counts.
    """
    try:
        turn = _turn(body)
    except msgspec.ValidationError as error:
        raise from_msgspec(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(error) from None
    look = _needs_a_look(body)
    contents: list[str] = []
    facts = []
    hidden: list[int] = []
    tags, limit = policy.inline_tool_tags, policy.tool_result_retention_chars
    for index, message in enumerate(turn.messages):
        content = read_content(message.content, f"/messages/{index}/content", look=look)
        contents.append(bytes(message.content).decode())
        facts.append(message_facts(message.role, content))
        if tags:
            hidden.append(hidden_tokens(message.role, content, tags, limit))
    return Turn(
        contents,
        turn_facts(facts),
        _usage(turn),
        turn.expected_next_seq,
        turn.replace_from,
        hidden if any(hidden) else None,
        _context_blocks(turn.context, look=look) if turn.context else (),
    )


def _context_blocks(given: Sequence[ContextBlockIn], *, look: bool) -> tuple[ContextBlock, ...]:
    for index, block in enumerate(given):
        if look:
            _look(msgspec.to_builtins(block), f"/context/{index}")
        if not block.text.strip():
            raise invalid("A context block needs text.", f"/context/{index}/text")
    return tuple(ContextBlock(block.source, block.title, block.text) for block in given)


def read_content(raw: msgspec.Raw, pointer: str, *, look: bool) -> Any:
    """Return a message's content, checked for what every later step relies on."""
    try:
        content = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"Not valid JSON text: {_reason(error)}", pointer) from None
    if look:
        _look(content, pointer)
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid("Expected a string or a list of content blocks.", pointer)
    for index, block in enumerate(content):
        _check_block(block, f"{pointer}/{index}")
    return content


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


def malformed(error: Exception) -> ProblemError:
    """Return the answer for a body that is not JSON."""
    return ProblemError(400, "malformed_json", f"The body is not valid JSON: {_reason(error)}")


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _check_block(block: Any, pointer: str) -> None:
    if not isinstance(block, dict):
        raise invalid("A content block is an object.", pointer)
    kind = block.get("type")
    if not isinstance(kind, str) or not kind:
        raise invalid("A content block needs a `type`.", f"{pointer}/type")
    for field, expected in _REQUIRED.get(kind, ()):
        if not isinstance(block.get(field), expected):
            raise invalid(f"A {kind} block needs `{field}`: {_JSON_NAMES[expected]}.", f"{pointer}/{field}")


def _needs_a_look(body: bytes) -> bool:
    """Tell whether a body may hold what the database or a later step cannot take; most cannot."""
    return _NUL in body or body.count(b"[") + body.count(b"{") > MAX_DEPTH


def _look(value: Any, pointer: str) -> None:
    """Raise the problem of a value that is nested too deeply or has NUL in its text."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for _, inner in _members(outer)]
        if not level:
            break
    else:
        raise invalid(f"Nested more than {MAX_DEPTH} levels deep.", pointer)
    if (found := _find_nul(value, pointer)) is not None:
        raise invalid("Text must not contain the NUL character.", found)


def _members(value: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def _find_nul(value: Any, pointer: str) -> str | None:
    if isinstance(value, str):
        return pointer if "\x00" in value else None
    for name, inner in _members(value):
        if isinstance(name, str) and "\x00" in name:
            return pointer
        if (found := _find_nul(inner, step_into(pointer, name))) is not None:
            return found
    return None


def _usage(turn: TurnIn) -> Usage:
    usage = turn.usage
    if usage is None:
        return Usage(None, 0, turn.snapshot_version)
    read_tokens = (
        (usage.input_tokens or 0) + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    )
    # 0 means that nothing was counted, never that nothing was sent (seed 004).
    return Usage(read_tokens or None, usage.output_tokens or 0, turn.snapshot_version)
