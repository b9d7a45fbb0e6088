"""LangChain's messages in the shapes of the model APIs, and back."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage

from palimpsest_langchain.openai_messages import from_chat, from_items, to_chat, to_items

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from langchain_core.messages import BaseMessage
    from palimpsest_client import Shape

Block = dict[str, Any]
Stored = dict[str, Any]


_THINKING: Final = frozenset({"thinking", "redacted_thinking"})
NO_RESULT: Final = "No result was recorded for this tool call."
_OF_RESPONSES: Final = ("include", "reasoning", "truncation", "context_management")
"""Settings with which `ChatOpenAI` speaks Responses by itself."""


def shape_of(model: Any) -> Shape:
    """Return the shape of a model's API; the Messages API's where it is not one of OpenAI's integrations.

    A `ChatOpenAI` that speaks Responses for other reasons, such as its model's name, needs `use_responses_api=True`.
    """
    if not hasattr(model, "use_responses_api"):
        return "messages"
    if isinstance(model.use_responses_api, bool):
        return "responses" if model.use_responses_api else "chat"
    is_set = any(getattr(model, name, None) is not None for name in _OF_RESPONSES)
    return "responses" if is_set or getattr(model, "output_version", None) == "responses/v1" else "chat"


def lacks_loop_thinking(messages: Sequence[BaseMessage]) -> bool:
    """Return whether messages end within a tool loop in which nothing is there of what was thought."""
    if not isinstance(messages[-1], ToolMessage):
        return False
    loop = itertools.takewhile(lambda message: not isinstance(message, HumanMessage), reversed(messages))
    blocks = (block for message in loop if isinstance(message.content, list) for block in message.content)
    return not any(isinstance(block, dict) and block.get("type") in _THINKING for block in blocks)


def to_stored(messages: Iterable[BaseMessage], shape: Shape = "messages") -> list[Stored]:
    """Return messages in a shape; a system prompt is none of them, and neither is nothing."""
    if shape != "messages":
        return to_chat(messages) if shape == "chat" else to_items(messages)
    stored: list[Stored] = []
    for message in messages:
        if isinstance(message, SystemMessage):
            continue
        content = _results(message) if isinstance(message, ToolMessage) else _content(message)
        if not _is_blank(content):
            role = "assistant" if isinstance(message, AIMessage) else "user"
            stored.append({"role": role, "content": content})
    return stored


def from_stored(messages: Sequence[Mapping[str, Any]], shape: Shape = "messages") -> list[AnyMessage]:
    """Return what is served in a shape as LangChain has it; each tool result is a message of its own."""
    if shape != "messages":
        return from_chat(messages) if shape == "chat" else from_items(messages)
    found: list[AnyMessage] = []
    names: dict[str, str] = {}
    for message in messages:
        content = message["content"]
        blocks: list[Block] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if message["role"] == "assistant":
            calls = [block for block in blocks if block["type"] == "tool_use"]
            names |= {call["id"]: call["name"] for call in calls}
            found.append(
                AIMessage(
                    content=_of_blocks([block for block in blocks if block["type"] != "tool_use"]),
                    tool_calls=[{"id": call["id"], "name": call["name"], "args": call["input"]} for call in calls],
                )
            )
            continue
        results = [block for block in blocks if block["type"] == "tool_result"]
        found += [
            ToolMessage(
                content=block.get("content") or "",
                tool_call_id=block["tool_use_id"],
                name=names.get(block["tool_use_id"]),
                status="error" if block.get("is_error") else "success",
            )
            for block in results
        ]
        if rest := [block for block in blocks if block["type"] != "tool_result"]:
            found.append(HumanMessage(content=_of_blocks(rest)))
    return found


def unanswered(served: Sequence[BaseMessage], new: Sequence[BaseMessage]) -> list[ToolMessage]:
    """Return an error as the result of each call that a context ends with and what is new does not answer.

    A tool that raised leaves such calls behind, and so does a run that was stopped; no API takes another message next.
    """
    asked = max((place for place, message in enumerate(served) if isinstance(message, HumanMessage)), default=-1)
    newest = served[asked + 1 :]
    answered = {message.tool_call_id for message in [*newest, *new] if isinstance(message, ToolMessage)}
    calls = [call for message in newest if isinstance(message, AIMessage) for call in message.tool_calls]
    return [
        ToolMessage(NO_RESULT, tool_call_id=call["id"], name=call["name"], status="error")
        for call in (calls if new else ())
        if call["id"] not in answered
    ]


def usage_of(message: AIMessage, shape: Shape) -> dict[str, Any] | None:
    """Return what the model counted, as the API has it: `input_tokens` of Messages is without what was cached."""
    counted = message.usage_metadata
    if counted is None:
        return None
    thought = {"reasoning_tokens": counted.get("output_token_details", {}).get("reasoning", 0)}
    if shape == "chat":
        said = {"completion_tokens": counted["output_tokens"], "completion_tokens_details": thought}
        return {"prompt_tokens": counted["input_tokens"], **said}
    if shape == "responses":
        said = {"output_tokens": counted["output_tokens"], "output_tokens_details": thought}
        return {"input_tokens": counted["input_tokens"], **said}
    details = counted.get("input_token_details", {})
    # What is not counted is left out: 0 says that nothing came from a cache.
    names = {"cache_read": "cache_read_input_tokens", "cache_creation": "cache_creation_input_tokens"}
    cached = {names[name]: count for name, count in details.items() if name in names and isinstance(count, int)}
    rest = max(counted["input_tokens"] - sum(cached.values()), 0)
    return {"input_tokens": rest, **cached, "output_tokens": counted["output_tokens"]}


def _content(message: BaseMessage) -> str | list[Block]:
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    if isinstance(message.content, str) and not calls:
        return message.content
    listed: list[Any] = [message.content] if isinstance(message.content, str) else message.content
    # A model's own integration may have its calls among the blocks already; `tool_calls` has them all.
    blocks = [block for block in map(_block, listed) if block is not None and block["type"] != "tool_use"]
    uses = [{"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["args"]} for call in calls]
    return [*blocks, *uses]


def _is_blank(content: str | list[Block]) -> bool:
    """Tell whether a message says nothing: the API takes none, though models answer so."""
    if isinstance(content, str):
        return not content.strip()
    return all(block["type"] == "text" and not block["text"].strip() for block in content)


def _block(block: str | Block) -> Block | None:
    if isinstance(block, str):
        return {"type": "text", "text": block} if block else None
    # What no API asks for, such as the place in a stream, is not stored.
    kept = {name: value for name, value in block.items() if name != "index"}
    return None if kept.get("type") == "text" and not kept.get("text") else kept


def _results(message: ToolMessage) -> list[Block]:
    content = message.content
    if not isinstance(content, str):
        content = [block for block in map(_block, content) if block is not None]
    result: Block = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": content}
    return [{**result, "is_error": True} if message.status == "error" else result]


def _of_blocks(blocks: list[Block]) -> Any:
    """Return one text as itself, and no block as no text, which every model integration understands."""
    if len(blocks) == 1 and set(blocks[0]) == {"type", "text"}:
        return blocks[0]["text"]
    return blocks or ""
