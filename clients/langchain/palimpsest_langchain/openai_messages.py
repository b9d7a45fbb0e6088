"""LangChain's messages in the shapes of OpenAI's APIs, and back.

Chat Completions by LangChain's own conversions. For Responses `langchain_openai` has each item of an answer as a block
of its content, which is stored as the item that it is: reasoning stays in its place, encrypted.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
    convert_to_openai_messages,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from langchain_core.messages import BaseMessage

Stored = dict[str, Any]
REASONING: Final = "reasoning_content"
"""Where integrations of servers that speak Chat Completions have what a model thought."""
_TEXTS: Final = {"text": "output_text", "output_text": "output_text"}


def to_chat(messages: Iterable[BaseMessage]) -> list[Stored]:
    """Return messages as Chat Completions has them; a system prompt is none of them, and neither is nothing."""
    return [sent for message in messages if (sent := _chat(message)) is not None]


def _chat(message: BaseMessage) -> Stored | None:
    if isinstance(message, SystemMessage):
        return None
    if not isinstance(message, AIMessage):
        sent: Stored = convert_to_openai_messages(message)
        return sent if sent.get("content") or isinstance(message, ToolMessage) else None
    said: Stored = {"role": "assistant", "content": message.text or None}
    if thought := message.additional_kwargs.get(REASONING):
        said[REASONING] = thought
    if message.tool_calls:
        said["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": _json(call["args"])}}
            for call in message.tool_calls
        ]
    return said if message.text or message.tool_calls else None


def from_chat(messages: Sequence[Mapping[str, Any]]) -> list[AnyMessage]:
    """Return messages of Chat Completions as LangChain has them."""
    found: list[AnyMessage] = []
    names: dict[str, str] = {}
    for sent in messages:
        (message,) = convert_to_messages([{**sent, "content": sent.get("content") or ""}])
        if isinstance(message, AIMessage):
            names |= {str(call["id"]): call["name"] for call in message.tool_calls}
            # Else it would go out twice, and as it was before anything was cut.
            message.additional_kwargs = {REASONING: sent[REASONING]} if sent.get(REASONING) else {}
        elif isinstance(message, ToolMessage):
            message.name = names.get(message.tool_call_id)
        found.append(cast("AnyMessage", message))
    return found


def to_items(messages: Iterable[BaseMessage]) -> list[Stored]:
    """Return messages as items of Responses; a system prompt is none of them, and neither is nothing."""
    items: list[Stored] = []
    for message in messages:
        if isinstance(message, AIMessage):
            items += _answered(message)
        elif isinstance(message, ToolMessage):
            sent = convert_to_openai_messages(message)
            own = message.additional_kwargs.get("type")
            kind = own if own == "custom_tool_call_output" else "function_call_output"
            output = _parts(sent["content"]) if isinstance(sent["content"], list) else sent["content"]
            items.append({"type": kind, "call_id": message.tool_call_id, "output": output})
        elif not isinstance(message, SystemMessage) and message.content:
            content = convert_to_openai_messages(message)["content"]
            items.append({"role": "user", "content": content if isinstance(content, str) else _parts(content)})
    return items


def _parts(content: Sequence[Mapping[str, Any]]) -> list[Stored]:
    """Return the parts of what a user said, from Chat Completions' form."""
    parts: list[Stored] = []
    for part in content:
        match part.get("type"):
            case "text":
                parts.append({"type": "input_text", "text": part["text"]})
            case "image_url":
                detail = part["image_url"].get("detail", "auto")
                parts.append({"type": "input_image", "image_url": part["image_url"]["url"], "detail": detail})
            case "file":
                parts.append({"type": "input_file", **part["file"]})
            case _:
                parts.append(dict(part))
    return parts


def _answered(message: AIMessage) -> list[Stored]:
    items: list[Stored] = []
    blocks = [message.content] if isinstance(message.content, str) else message.content
    for block in blocks:
        if isinstance(block, str):
            items += [{"role": "assistant", "content": block}] if block else []
            continue
        own = {name: value for name, value in block.items() if name not in {"index", "sub_index"}}
        if own.get("type") not in {*_TEXTS, "refusal"}:
            items.append(own)
            continue
        identifier = own.get("id")
        said = _said(own)
        if identifier and items and items[-1].get("id") == identifier:
            items[-1]["content"].append(said)
        elif identifier:
            named = {"type": "message", "id": identifier, "role": "assistant", "status": "completed"}
            items.append({**named, "content": [said]})
        else:
            items.append({"type": "message", "role": "assistant", "content": [said]})
    called = {item.get("call_id") for item in items}
    items += [
        {"type": "function_call", "call_id": call["id"], "name": call["name"], "arguments": _json(call["args"])}
        for call in message.tool_calls
        if call["id"] not in called
    ]
    return items


def _said(block: Stored) -> Stored:
    if block["type"] == "refusal":
        return {"type": "refusal", "refusal": block["refusal"]}
    # LangChain keeps the name `index` for the place in a stream.
    marks = [
        {"index" if name == "file_index" else name: value for name, value in mark.items()}
        for mark in block.get("annotations") or ()
    ]
    return {"type": "output_text", "text": block["text"], "annotations": marks}


def from_items(items: Sequence[Mapping[str, Any]]) -> list[AnyMessage]:
    """Return items of Responses as LangChain has them: those of an answer are blocks of one message."""
    found: list[AnyMessage] = []
    names: dict[str, str] = {}
    for item in items:
        kind = item.get("type", "message")
        if kind.endswith("_output"):
            content = item.get("output") if isinstance(item.get("output"), str) else _chat_parts(item.get("output"))
            identifier = str(item.get("call_id", item.get("id")))
            message = ToolMessage(content or "", tool_call_id=identifier, name=names.get(identifier))
            if kind == "custom_tool_call_output":
                message.additional_kwargs = {"type": kind}
            found.append(message)
        elif kind == "message" and item["role"] != "assistant":
            content = item["content"] if isinstance(item["content"], str) else _chat_parts(item["content"])
            found.append(HumanMessage(content) if item["role"] == "user" else SystemMessage(content))
        else:
            last = found[-1] if found else None
            answer = last if isinstance(last, AIMessage) else AIMessage([])
            if answer is not last:
                found.append(answer)
            answer.content = [*answer.content, *_blocks(item)]
            if kind in {"function_call", "custom_tool_call"}:
                names[item["call_id"]] = item["name"]
                args = _object(item["arguments"]) if kind == "function_call" else {"__arg1": item["input"]}
                answer.tool_calls = [*answer.tool_calls, {"name": item["name"], "args": args, "id": item["call_id"]}]
    return found


def _blocks(item: Mapping[str, Any]) -> Iterator[Stored]:
    """Yield the blocks of content that `langchain_openai` has for an item of an answer."""
    if item.get("type", "message") != "message":
        yield dict(item)
        return
    own = {"id": item["id"]} if item.get("id") else {}
    content: Any = item["content"]
    said: list[Any] = [{"type": "output_text", "text": content}] if isinstance(content, str) else content
    for part in said:
        if part["type"] == "refusal":
            yield {"type": "refusal", "refusal": part["refusal"], **own}
        else:
            marks = [
                {"file_index" if name == "index" else name: value for name, value in mark.items()}
                for mark in part.get("annotations") or ()
            ]
            yield {"type": "text", "text": part.get("text", ""), "annotations": marks, **own}


def _chat_parts(content: Any) -> list[Any]:
    """Return parts of what a user said in Chat Completions' form, which every integration of OpenAI's takes."""
    parts: list[Any] = []
    for part in content if isinstance(content, list) else [content or {}]:
        match part.get("type"):
            case "input_text" | "output_text":
                parts.append({"type": "text", "text": part["text"]})
            case "input_image" if isinstance(part.get("image_url"), str):
                parts.append({"type": "image_url", "image_url": {"url": part["image_url"]}})
            case "input_file" if "file_data" in part:
                kept = {name: part[name] for name in ("filename", "file_data") if name in part}
                parts.append({"type": "file", "file": kept})
            case _:
                parts.append(part)
    return parts


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _object(text: str) -> dict[str, Any]:
    """Return a call's arguments; what is no object as the text that it is, which the block beside it has too."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": text}
