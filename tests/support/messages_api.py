"""What the Anthropic Messages API accepts as `messages`, written once and apart from the product.

Tests judge the product's output with this module, so it shares no code with it. Two kinds of rule:

Documented (platform.claude.com: "Messages", "Handle tool calls", "Extended thinking", "Web search"):
same-role neighbours are combined into one turn; the first message is the user's; a `tool_use` is answered by
`tool_result` blocks in the next user message, and those come first in it; tool names are 1..128 of
`[a-zA-Z0-9_-]`; thinking goes back with its signature, in assistant messages only. From "Compaction on demand": a
signed `compaction` block is the first block of the first message, of either role, the only one with content, and has no
fields but those the API gave it; one with null content is a no-op. Blocks of the threshold compaction have no signature
and may stand anywhere.

Reported (400s quoted in public issues; off with `reported=False`):
- "text content blocks must be non-empty" / "must contain non-whitespace text": anthropics/claude-code#23440,
  #59812; inside a tool result as well: anthropics/anthropic-sdk-go#394. These two are always on.
- "`tool_use` ids must be unique", within one combined message: HKUDS/nanobot#4442, openclaw/openclaw#43370.
- "each tool_use must have a single result": sipeed/picoclaw#1793.
- `tool_use.id` must match `^[a-zA-Z0-9_-]+$`: anomalyco/opencode#1279.
- "Each `advisor_tool_result` block must have a corresponding `server_tool_use` block before it":
  anthropics/claude-code#64383.
- R1 text or thinking after a `tool_use` of the same combined message ("`tool_use` ids were found without
  `tool_result` blocks immediately after"): the reordering in anomalyco/opencode's provider transform.
- R2 "The final block in an assistant message cannot be `thinking`": tailcallhq/forgecode#3073.
- R3 "all content must be type 'text' if 'is_error' is true": vellum-ai/vellum-assistant#18387.

Not modelled: sizes and counts, what `thinking` being switched on demands of the newest message, server tools
that call client tools and so span messages, system messages inside `messages`.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ID_PATTERN: Final = re.compile(r"^[a-zA-Z0-9_-]+\Z")
NAME_PATTERN: Final = re.compile(r"^[a-zA-Z0-9_-]{1,128}\Z")
ROLES: Final = ("user", "assistant")
THINKING: Final = frozenset({"thinking", "redacted_thinking"})
SERVER_CALLS: Final = frozenset({"server_tool_use", "mcp_tool_use"})
ASSISTANT_ONLY: Final = THINKING | SERVER_CALLS | {"tool_use"}
USER_ONLY: Final = frozenset({"tool_result", "image", "document"})
COMPACTION_FIELDS: Final = frozenset(
    {"type", "content", "signature", "encrypted_content", "tool_changes", "cache_control"}
)
NOT_IN_RESULT: Final = ASSISTANT_ONLY | {"tool_result"}


@dataclass(frozen=True)
class _Located:
    """One block with the path it has in the list as sent, `messages.3.content.0`."""

    path: str
    block: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return str(self.block.get("type", ""))


@dataclass(frozen=True)
class _Turn:
    """Same-role neighbours combined, as the API does before it looks at pairs."""

    role: str
    blocks: tuple[_Located, ...]


def alternates(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether no two neighbouring messages have the same role."""
    return all(a.get("role") != b.get("role") for a, b in pairwise(messages))


def problems(
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    allow_open_tail: bool = True,
    ledger: ThinkingLedger | None = None,
    reported: bool = True,
) -> list[str]:
    """Return why the API would refuse `messages`, one line each; empty means accepted.

    tools: the request's tool definitions; None leaves them unchecked.
    allow_open_tail: a last assistant message may hold calls that nothing answers yet.
    ledger: also check that every thinking block still has the prefix it was signed with.
    reported: also apply R1..R3 of the module's docstring.
    """
    if not messages:
        return ["messages: at least one message is required"]
    problems: list[str] = []
    for index, message in enumerate(messages):
        problems += _shape(f"messages.{index}", message)
    if messages[0].get("role") != "user" and not begins_with_summary(messages):
        problems.append("messages.0: the first message must be a user message")
    problems += _compactions(messages)
    turns = _combine(messages)
    for turn in turns:
        for located in turn.blocks:
            problems += _block(located, turn.role, reported=reported)
    problems += _client_pairs(turns, allow_open_tail=allow_open_tail)
    problems += _server_pairs(turns, allow_open_tail=allow_open_tail)
    problems += _callers(turns)
    if reported:
        problems += _endings(turns)
    if tools is not None:
        problems += _tools(tools, turns)
    if ledger is not None:
        problems += ledger.problems(messages)
    return problems


def begins_with_summary(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the first block is a compaction block with content and a signature."""
    first = next(_blocks("", messages[0]), None) if messages else None
    return first is not None and _is_signed_summary(first)


def open_calls(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ids of the calls that the last assistant turn leaves unanswered, server tools' included."""
    turns = _combine(messages)
    if not turns or turns[-1].role != "assistant":
        return []
    calls = {str(each.block.get("id")) for each in turns[-1].blocks if each.kind in SERVER_CALLS | {"tool_use"}}
    return sorted(calls - {str(each.block.get("tool_use_id")) for each in turns[-1].blocks})


def _is_signed_summary(located: _Located) -> bool:
    block = located.block
    return located.kind == "compaction" and bool(block.get("content")) and "signature" in block


def _compactions(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    signed = 0
    for index, message in enumerate(messages):
        for place, located in enumerate(_blocks(f"messages.{index}", message)):
            if located.kind != "compaction":
                continue
            block, path = located.block, located.path
            for extra in sorted(set(block) - COMPACTION_FIELDS):
                yield f"{path}.compaction.{extra}: Extra inputs are not permitted"
            content = block.get("content")
            if not (content is None or (isinstance(content, str) and content)):
                yield f"{path}.compaction.content: must be null or a string that is not empty"
            if block.get("signature") is not None and not isinstance(block["signature"], str):
                yield f"{path}.compaction.signature: must be a string"
            if _is_signed_summary(located):
                signed += 1
                if index or place:
                    yield f"{path}: compaction_block_misplaced: the block is not the first one of the conversation"
    if signed > 1:
        yield "messages: compaction_block_ambiguous: more than one compaction block with content"


class ThinkingLedger:
    """Stands in for the API's signatures: a thinking block is bound to everything sent before its message.

    What counts as unchanged is what the model sees: string content equals one text block, same-role
    neighbours are combined, `cache_control` marks are ignored. System prompt and tools belong to the prefix.
    """

    def __init__(self, system: object = None, tools: Sequence[Mapping[str, Any]] | None = None) -> None:
        self._base = _digest(["ledger", system, list(tools or [])])

    def sign(self, prefix_messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the signature that thinking right after `prefix_messages` carries."""
        digest = self._base
        for message in prefix_messages:
            digest = self._extend(digest, message)
        return f"sig-{digest}"

    def signed(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return a copy of `messages` in which every thinking block is signed for its place."""
        result: list[dict[str, Any]] = []
        digest = self._base
        for message in messages:
            own = copy.deepcopy(dict(message))
            for located in _blocks("", own):
                field = _signature_field(located.kind)
                if field and isinstance(located.block, dict):
                    located.block[field] = f"sig-{digest}"
            result.append(own)
            digest = self._extend(digest, own)
        return result

    def problems(self, messages: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return one line for each thinking block whose prefix is not the one it was signed with."""
        problems: list[str] = []
        digest = self._base
        for index, message in enumerate(messages):
            for located in _blocks(f"messages.{index}", message):
                field = _signature_field(located.kind)
                if field and located.block.get(field) != f"sig-{digest}":
                    problems.append(f"{located.path}: {located.kind} is bound to a different conversation")
            digest = self._extend(digest, message)
        return problems

    @staticmethod
    def _extend(digest: str, message: Mapping[str, Any]) -> str:
        for located in _blocks("", message):
            seen = {key: value for key, value in located.block.items() if key != "cache_control"}
            digest = _digest([digest, message.get("role"), seen])
        return digest


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _signature_field(kind: str) -> str | None:
    return {"thinking": "signature", "redacted_thinking": "data"}.get(kind)


def _blocks(path: str, message: Mapping[str, Any]) -> Iterator[_Located]:
    content = message.get("content")
    if isinstance(content, str):
        yield _Located(f"{path}.content", {"type": "text", "text": content})
    elif isinstance(content, list):
        for index, block in enumerate(content):
            if isinstance(block, dict):
                yield _Located(f"{path}.content.{index}", block)


def _combine(messages: Sequence[Mapping[str, Any]]) -> list[_Turn]:
    turns: list[_Turn] = []
    for index, message in enumerate(messages):
        role = str(message.get("role"))
        blocks = tuple(_blocks(f"messages.{index}", message))
        if turns and turns[-1].role == role:
            turns[-1] = _Turn(role, turns[-1].blocks + blocks)
        else:
            turns.append(_Turn(role, blocks))
    return turns


def _shape(path: str, message: Mapping[str, Any]) -> Iterator[str]:
    if message.get("role") not in ROLES:
        yield f"{path}.role: must be 'user' or 'assistant', not {message.get('role')!r}"
    for extra in sorted(set(message) - {"role", "content"}):
        yield f"{path}.{extra}: extra inputs are not permitted"
    content = message.get("content")
    if not isinstance(content, str | list):
        yield f"{path}.content: must be a string or a list of blocks"
    elif not content:
        yield f"{path}.content: must not be empty"
    elif isinstance(content, list):
        for index, block in enumerate(content):
            if not isinstance(block, dict) or not isinstance(block.get("type"), str):
                yield f"{path}.content.{index}: must be an object with a type"


def _block(located: _Located, role: str, *, reported: bool) -> Iterator[str]:
    path, block, kind = located.path, located.block, located.kind
    yield from _place(path, kind, role)
    if kind == "text":
        yield from _text(path, block)
    elif kind in THINKING:
        for field in ("thinking", "signature") if kind == "thinking" else ("data",):
            if not isinstance(block.get(field), str):
                yield f"{path}.{field}: must be a string"
    elif kind == "tool_use" or kind in SERVER_CALLS:
        yield from _call(path, block)
    elif kind in {"image", "document"} and not isinstance(block.get("source"), dict):
        yield f"{path}.source: must be an object"
    elif kind == "tool_result":
        yield from _result(path, block, reported=reported)


def _place(path: str, kind: str, role: str) -> Iterator[str]:
    if role != "assistant" and (kind in ASSISTANT_ONLY or _is_server_result(kind)):
        yield f"{path}: {kind} is only allowed in assistant messages"
    if role != "user" and kind in USER_ONLY:
        yield f"{path}: {kind} is only allowed in user messages"


def _text(path: str, block: Mapping[str, Any]) -> Iterator[str]:
    text = block.get("text")
    if not isinstance(text, str):
        yield f"{path}.text: must be a string"
    elif not text.strip():
        yield f"{path}: text must contain non-whitespace characters"


def _call(path: str, block: Mapping[str, Any]) -> Iterator[str]:
    if not (isinstance(block.get("id"), str) and ID_PATTERN.match(block["id"])):
        yield f"{path}.id: must match {ID_PATTERN.pattern}, not {block.get('id')!r}"
    if not (isinstance(block.get("name"), str) and NAME_PATTERN.match(block["name"])):
        yield f"{path}.name: must match {NAME_PATTERN.pattern}, not {block.get('name')!r}"
    if not isinstance(block.get("input"), dict):
        yield f"{path}.input: must be an object"


def _result(path: str, block: Mapping[str, Any], *, reported: bool) -> Iterator[str]:
    if not isinstance(block.get("tool_use_id"), str):
        yield f"{path}.tool_use_id: must be a string"
    content = block.get("content", "")
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        yield f"{path}.content: must be a string or a list of blocks"
        return
    for index, inner in enumerate(content):
        where = f"{path}.content.{index}"
        kind = inner.get("type") if isinstance(inner, dict) else None
        if not isinstance(kind, str):
            yield f"{where}: must be an object with a type"
        elif kind == "text":
            yield from _text(where, inner)
        elif kind in NOT_IN_RESULT:
            yield f"{where}: {kind} is not allowed in a tool_result"
        elif kind in {"image", "document"} and not isinstance(inner.get("source"), dict):
            yield f"{where}.source: must be an object"
        if reported and kind not in {None, "text"} and block.get("is_error"):
            yield f"{where}: all content must be text if is_error is true"


def _is_server_result(kind: str) -> bool:
    return kind.endswith("_tool_result")


def _client_pairs(turns: Sequence[_Turn], *, allow_open_tail: bool) -> Iterator[str]:
    for index, turn in enumerate(turns):
        if turn.role == "user":
            asked = _call_ids(turns[index - 1]) if index else set()
            yield from _answers(turn, asked)
        seen: set[str] = set()
        answered = _result_ids(turns[index + 1]) if index + 1 < len(turns) else None
        for located in turn.blocks:
            if located.kind != "tool_use" or turn.role != "assistant":
                continue
            call_id = str(located.block.get("id"))
            if call_id in seen:
                yield f"{located.path}: tool_use ids must be unique, {call_id} is repeated"
            seen.add(call_id)
            is_open = answered is None and not allow_open_tail
            if is_open or (answered is not None and call_id not in answered):
                yield f"{located.path}: tool_use {call_id} has no tool_result in the next message"


def _answers(turn: _Turn, asked: set[str]) -> Iterator[str]:
    seen: set[str] = set()
    other = False
    for located in turn.blocks:
        if located.kind != "tool_result":
            other = True
            continue
        call_id = str(located.block.get("tool_use_id"))
        if call_id not in asked:
            yield f"{located.path}: tool_result {call_id} has no tool_use in the previous message"
        if call_id in seen:
            yield f"{located.path}: more than one tool_result for {call_id}"
        if other:
            yield f"{located.path}: tool_result blocks must come first in their message"
        seen.add(call_id)


def _call_ids(turn: _Turn) -> set[str]:
    return {str(each.block.get("id")) for each in turn.blocks if each.kind == "tool_use"}


def _result_ids(turn: _Turn) -> set[str]:
    return {str(each.block.get("tool_use_id")) for each in turn.blocks if each.kind == "tool_result"}


def _server_pairs(turns: Sequence[_Turn], *, allow_open_tail: bool) -> Iterator[str]:
    """Yield server calls without a result, which may come after results of the tools that the server called."""
    unanswered: dict[str, str] = {}
    for index, turn in enumerate(turns):
        seen: set[str] = set(unanswered)
        for located in turn.blocks if turn.role == "assistant" else ():
            if located.kind in SERVER_CALLS:
                call_id = str(located.block.get("id"))
                if call_id in seen:
                    yield f"{located.path}: {located.kind} ids must be unique, {call_id} is repeated"
                seen.add(call_id)
                unanswered[call_id] = located.path
            elif _is_server_result(located.kind):
                call_id = str(located.block.get("tool_use_id"))
                if unanswered.pop(call_id, None) is None:
                    yield f"{located.path}: {located.kind} {call_id} has no server_tool_use before it"
        kinds = {located.kind for located in turn.blocks}
        goes_on = kinds == {"tool_result"} if turn.role == "user" else "tool_use" in kinds
        if not goes_on and not (allow_open_tail and index == len(turns) - 1):
            for call_id, path in unanswered.items():
                yield f"{path}: {call_id} has no result where the conversation goes on"
            unanswered = {}


def _callers(turns: Sequence[_Turn]) -> Iterator[str]:
    """Yield calls of the client's tools that name a server call which does not stand before them."""
    known: set[str] = set()
    for located in (located for turn in turns for located in turn.blocks):
        caller = located.block.get("caller")
        if located.kind in SERVER_CALLS:
            known.add(str(located.block.get("id")))
        elif isinstance(caller, dict) and caller.get("tool_id", "") not in {"", *known}:
            yield f"{located.path}: its caller {caller['tool_id']} is not there"


def _endings(turns: Sequence[_Turn]) -> Iterator[str]:
    for turn in turns:
        if turn.role != "assistant" or not turn.blocks:
            continue
        called = False
        for located in turn.blocks:
            called = called or located.kind == "tool_use"
            if called and (located.kind == "text" or located.kind in THINKING):
                yield f"{located.path}: {located.kind} after a tool_use parts the call from its result"
        if turn.blocks[-1].kind in THINKING:
            yield f"{turn.blocks[-1].path}: the final block of an assistant message cannot be thinking"


def _tools(tools: Sequence[Mapping[str, Any]], turns: Sequence[_Turn]) -> Iterator[str]:
    names = [tool.get("name") for tool in tools]
    if len(set(names)) != len(names):
        yield "tools: names must be unique"
    for index, name in enumerate(names):
        if not (isinstance(name, str) and NAME_PATTERN.match(name)):
            yield f"tools.{index}.name: must match {NAME_PATTERN.pattern}, not {name!r}"
    used = any(located.kind in {"tool_use", "tool_result"} for turn in turns for located in turn.blocks)
    if used and not tools:
        yield "tools: requests with tool_use or tool_result blocks must define tools"
