"""Pydantic AI's messages in the shapes of the model APIs, and back.

A system prompt is the agent's own and none of them. What no shape can say for a model, such as a call of the
provider's own tools, is put in words.
"""

from __future__ import annotations

import base64
import re
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from pydantic_ai.messages import (
    ERROR_OUTCOMES,
    BinaryContent,
    CachePoint,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from palimpsest_client.answers import Message, Shape

REDACTED: Final = "redacted_thinking"
"""The id that Pydantic AI gives to thinking that Anthropic's API encrypts."""
_DATA_URL: Final = re.compile(r"data:(?P<media>[\w.+-]+/[\w.+-]+);base64,(?P<data>.*)\Z", re.DOTALL)
_REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
"""Where servers that speak Chat Completions put what a model thought; Pydantic AI has the field's name as its id."""
_ERROR: Final = "Error: "


def to_sent(messages: Iterable[ModelMessage], shape: Shape) -> list[Message]:
    """Return messages as the API of a shape is sent them; of an empty one nothing."""
    return [sent for message in messages for sent in _encoded(message, shape) if sent]


def from_served(messages: Sequence[Message], shape: Shape, system: str) -> list[ModelMessage]:
    """Return what is served in a shape as Pydantic AI has it; `system` is the provider that reasoning goes back to."""
    reader = _Reader(shape, system)
    found: list[ModelMessage] = []
    for is_answer, group in groupby(messages, key=_is_answer):
        if is_answer:
            answer = [part for message in group for part in reader.answer(message)]
            found.append(ModelResponse(parts=answer, provider_name=system))
        else:
            found.append(ModelRequest(parts=[part for message in group for part in reader.request(message)]))
    return found


def _encoded(message: ModelMessage, shape: Shape) -> list[Message]:
    if isinstance(message, ModelResponse):
        return _ANSWERS[shape](message)
    results = [part for part in message.parts if isinstance(part, ToolReturnPart)]
    said = [each for part in message.parts for each in _said(part)]
    parts = [part for each in said if (part := _content(each, shape)) is not None]
    text = said[0] if len(said) == 1 and isinstance(said[0], str) else None
    asked: list[Message] = [{"role": "user", "content": text or parts}] if parts else []
    if shape == "messages":
        blocks = [_result_block(part) for part in results]
        return asked if not blocks else [{"role": "user", "content": [*blocks, *parts]}]
    if shape == "chat":
        return [
            *({"role": "tool", "tool_call_id": each.tool_call_id, "content": _text(each)} for each in results),
            *asked,
        ]
    outputs = (
        {"type": "function_call_output", "call_id": each.tool_call_id, "output": _text(each)} for each in results
    )
    return [*outputs, *asked]


def _said(part: Any) -> Iterator[Any]:
    """Yield what a part of a request says to the model beside the results of tools."""
    if isinstance(part, UserPromptPart):
        yield from [part.content] if isinstance(part.content, str) else part.content
    elif isinstance(part, ToolReturnPart):
        yield from part.files
    elif not isinstance(part, SystemPromptPart) and hasattr(part, "model_response"):
        yield part.model_response()


def _text(part: ToolReturnPart[Any]) -> str:
    text = part.model_response_str()
    return f"{_ERROR}{text}" if part.outcome in ERROR_OUTCOMES and not text.startswith(_ERROR) else text


def _result_block(part: ToolReturnPart[Any]) -> Message:
    result = {"type": "tool_result", "tool_use_id": part.tool_call_id, "content": part.model_response_str()}
    return {**result, "is_error": True} if part.outcome in ERROR_OUTCOMES else result


def _content(each: Any, shape: Shape) -> Message | None:  # noqa: PLR0911 - one return for each kind of content
    """Return something that was said or shown as a part of content, None for what is no content."""
    if isinstance(each, CachePoint):
        return None
    if isinstance(each, ImageUrl) or (isinstance(each, BinaryContent) and each.is_image):
        url = each.url if isinstance(each, ImageUrl) else each.data_uri
        if shape == "messages":
            return {"type": "image", "source": _source(url)}
        if shape == "chat":
            return {"type": "image_url", "image_url": {"url": url}}
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    if isinstance(each, BinaryContent) and each.media_type == "application/pdf":
        named = {"filename": f"{each.identifier}.pdf", "file_data": each.data_uri}
        if shape == "messages":
            return {"type": "document", "source": _source(each.data_uri)}
        return {"type": "file", "file": named} if shape == "chat" else {"type": "input_file", **named}
    if isinstance(each, DocumentUrl) and shape != "chat":
        if shape == "messages":
            return {"type": "document", "source": {"type": "url", "url": each.url}}
        return {"type": "input_file", "file_url": each.url}
    kind = "input_text" if shape == "responses" else "text"
    text = each if isinstance(each, str) else each.content if isinstance(each, TextContent) else _named(each)
    return {"type": kind, "text": text} if text.strip() else None


def _named(each: Any) -> str:
    """Say what something is that the shape has no part for."""
    return f"[{getattr(each, 'kind', type(each).__name__)}: {getattr(each, 'url', getattr(each, 'media_type', ''))}]"


def _source(url: str) -> Message:
    if found := _DATA_URL.match(url):
        return {"type": "base64", "media_type": found["media"], "data": found["data"]}
    return {"type": "url", "url": url}


def _in_words(part: Any) -> str:
    """Return a part of an answer that has no form of its own as text; of a file nothing."""
    if isinstance(part, TextPart):
        return str(part.content)
    if isinstance(part, NativeToolCallPart):
        return f"[calls {part.tool_name} with {part.args_as_json_str()}]"
    if isinstance(part, NativeToolReturnPart):
        return f"[{part.tool_name} returned] {part.model_response_str()}"
    content = getattr(part, "content", None)
    return content if isinstance(content, str) else ""


def _answer_of_messages(message: ModelResponse) -> list[Message]:
    blocks: list[Message] = []
    for part in message.parts:
        if isinstance(part, ThinkingPart):
            if part.id == REDACTED:
                blocks.append({"type": REDACTED, "data": part.signature})
            elif part.signature:
                blocks.append({"type": "thinking", "thinking": part.content, "signature": part.signature})
        elif isinstance(part, ToolCallPart):
            call = {"type": "tool_use", "id": part.tool_call_id, "name": part.tool_name, "input": part.args_as_dict()}
            blocks.append(call)
        elif (text := _in_words(part)).strip():
            blocks.append({"type": "text", "text": text})
    if [block["type"] for block in blocks] == ["text"]:
        return [{"role": "assistant", "content": blocks[0]["text"]}]
    return [{"role": "assistant", "content": blocks}] if blocks else []


def _answer_of_chat(message: ModelResponse) -> list[Message]:
    texts: list[str] = []
    sent: Message = {"role": "assistant", "content": None}
    for part in message.parts:
        if isinstance(part, ThinkingPart):
            if part.id in _REASONING_FIELDS and part.content:
                sent[part.id] = sent.get(part.id, "") + part.content
            elif part.signature and part.content:
                thought = {"type": "thinking", "thinking": part.content, "signature": part.signature}
                sent.setdefault("thinking_blocks", []).append(thought)
        elif isinstance(part, ToolCallPart):
            function = {"name": part.tool_name, "arguments": part.args_as_json_str()}
            sent.setdefault("tool_calls", []).append(
                {"id": part.tool_call_id, "type": "function", "function": function}
            )
        elif (text := _in_words(part)).strip():
            texts.append(text)
    if texts:
        sent["content"] = "\n\n".join(texts)
    return [sent] if texts or "tool_calls" in sent else []


def _answer_of_responses(message: ModelResponse) -> list[Message]:
    items: list[Message] = []
    for part in message.parts:
        if isinstance(part, ThinkingPart):
            _add_reasoning(items, part)
        elif isinstance(part, ToolCallPart):
            call = {"type": "function_call", "call_id": part.tool_call_id, "name": part.tool_name}
            own = {"id": part.id} if part.id else {}
            items.append({**call, "arguments": part.args_as_json_str(), **own})
        elif (text := _in_words(part)).strip():
            _add_text(items, text, part.id if isinstance(part, TextPart) else None)
    # Reasoning belongs to what follows it: the API refuses it at an end.
    while items and items[-1].get("type") == "reasoning":
        items.pop()
    return items


def _add_reasoning(items: list[Message], part: ThinkingPart) -> None:
    """Add a part of reasoning, which is one item with all parts of the same id; one without an id goes back nowhere."""
    if part.id is None:
        return
    if not items or items[-1].get("type") != "reasoning" or items[-1]["id"] != part.id:
        items.append({"type": "reasoning", "id": part.id, "summary": []})
    item = items[-1]
    if part.signature:
        item["encrypted_content"] = part.signature
    if part.content:
        item["summary"].append({"type": "summary_text", "text": part.content})
    if raw := (part.provider_details or {}).get("raw_content"):
        item["content"] = [{"type": "reasoning_text", "text": text} for text in raw]


def _add_text(items: list[Message], text: str, identifier: str | None) -> None:
    said = {"type": "output_text", "text": text, "annotations": []}
    if identifier is None:
        items.append({"role": "assistant", "content": text})
    elif items and items[-1].get("id") == identifier:
        items[-1]["content"].append(said)
    else:
        own = {"type": "message", "id": identifier, "status": "completed"}
        items.append({**own, "role": "assistant", "content": [said]})


_ANSWERS: Final = {"messages": _answer_of_messages, "chat": _answer_of_chat, "responses": _answer_of_responses}


def _is_answer(message: Message) -> bool:
    kind = message.get("type", "message")
    return message.get("role") == "assistant" if kind == "message" else not kind.endswith("_output")


class _Reader:
    """Reads messages of a shape in order: a result has the name of the tool that its call named."""

    def __init__(self, shape: Shape, system: str) -> None:
        self._shape = shape
        self._system = system
        self._names: dict[str, str] = {}

    def answer(self, message: Message) -> Iterator[Any]:
        """Yield the parts of what the model answered with."""
        kind = message.get("type", "message")
        if kind == "reasoning":
            yield from self._reasoning(message)
        elif kind == "function_call":
            yield self._call(message["call_id"], message["name"], message["arguments"], message.get("id"))
        elif kind != "message":
            yield TextPart(f"[{kind}]")
        else:
            yield from self._thinking(message)
            for block in _blocks(message.get("content")):
                yield from self._block(block, message.get("id"))
            if isinstance(refusal := message.get("refusal"), str) and refusal:
                yield TextPart(refusal)
            for call in message.get("tool_calls") or ():
                called = call.get("function") or call.get("custom") or {}
                given = called.get("arguments", called.get("input"))
                yield self._call(call["id"], str(called.get("name")), given)

    def request(self, message: Message) -> Iterator[Any]:
        """Yield the parts of what the model was sent."""
        if message.get("type", "message").endswith("_output"):
            yield self._result(str(message.get("call_id", message.get("id"))), message.get("output"))
            return
        if message["role"] == "tool":
            yield self._result(message["tool_call_id"], message["content"])
            return
        blocks = _blocks(message["content"])
        if message["role"] in {"system", "developer"}:
            yield SystemPromptPart("\n".join(str(block.get("text") or "") for block in blocks))
            return
        for block in blocks:
            if block.get("type") == "tool_result":
                yield self._result(block["tool_use_id"], block.get("content"), is_error=bool(block.get("is_error")))
        said = [_shown(block) for block in blocks if block.get("type") != "tool_result"]
        if said:
            yield UserPromptPart(said[0] if len(said) == 1 and isinstance(said[0], str) else said)

    def _block(self, block: Message, identifier: str | None) -> Iterator[Any]:
        match block.get("type"):
            case "thinking":
                yield ThinkingPart(block["thinking"], signature=block.get("signature"), provider_name=self._system)
            case "redacted_thinking":
                yield ThinkingPart("", id=REDACTED, signature=block["data"], provider_name=self._system)
            case "tool_use":
                yield self._call(block["id"], block["name"], block["input"])
            case _:
                text = block.get("text") or block.get("refusal") or f"[{block.get('type')}]"
                own: dict[str, Any] = {"id": identifier, "provider_name": self._system} if identifier else {}
                yield TextPart(str(text), **own)

    def _thinking(self, message: Message) -> Iterator[ThinkingPart]:
        for name in _REASONING_FIELDS:
            if isinstance(text := message.get(name), str) and text:
                yield ThinkingPart(text, id=name, provider_name=self._system)
        for block in message.get("thinking_blocks") or ():
            if block.get("type") == "thinking":
                yield ThinkingPart(block["thinking"], signature=block["signature"], provider_name=self._system)

    def _reasoning(self, item: Message) -> Iterator[ThinkingPart]:
        raw = [part["text"] for part in item.get("content") or ()]
        details: dict[str, Any] = {"provider_details": {"raw_content": raw}} if raw else {}
        sealed: dict[str, Any] = {"id": item.get("id"), "provider_name": self._system}
        summary = [part["text"] for part in item.get("summary") or ()] or [""]
        for at, text in enumerate(summary):
            first = {"signature": item.get("encrypted_content"), **details} if at == 0 else {}
            yield ThinkingPart(text, **sealed, **first)

    def _call(self, identifier: str, name: str, given: Any, own: str | None = None) -> ToolCallPart[Any]:
        self._names[identifier] = name
        by: dict[str, Any] = {"id": own, "provider_name": self._system} if own else {}
        return ToolCallPart(name, given, identifier, **by)

    def _result(self, identifier: str, content: Any, *, is_error: bool = False) -> ToolReturnPart[Any]:
        shown: list[Any] = [_shown(block) for block in _blocks(content)]
        value = shown[0] if len(shown) == 1 else shown or ""
        name = self._names.get(identifier, "tool")
        return ToolReturnPart(name, value, identifier, outcome="failed" if is_error else "success")


def _blocks(content: Any) -> list[Message]:
    if content is None:
        return []
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _shown(block: Mapping[str, Any]) -> Any:  # noqa: PLR0911 - one return for each type of part
    """Return a part of content as Pydantic AI has it; what it has nothing for by its type."""
    match block.get("type"):
        case "image":
            return _of_source(block["source"], ImageUrl)
        case "document":
            return _of_source(block["source"], DocumentUrl)
        case "image_url":
            return _of_url(block["image_url"]["url"], ImageUrl)
        case "input_image" if isinstance(block.get("image_url"), str):
            return _of_url(block["image_url"], ImageUrl)
        case "file" if isinstance(block["file"].get("file_data"), str):
            return _of_url(block["file"]["file_data"], DocumentUrl)
        case "input_file" if isinstance(url := block.get("file_data") or block.get("file_url"), str):
            return _of_url(url, DocumentUrl)
    return str(block.get("text") or f"[{block.get('type')}]")


def _of_source(source: Mapping[str, Any], kind: type[ImageUrl | DocumentUrl]) -> Any:
    if source.get("type") == "base64":
        return BinaryContent(base64.b64decode(source["data"]), media_type=source["media_type"])
    return kind(source["url"]) if "url" in source else str(source.get("data") or f"[{source.get('type')}]")


def _of_url(url: str, kind: type[ImageUrl | DocumentUrl]) -> Any:
    if found := _DATA_URL.match(url):
        return BinaryContent(base64.b64decode(found["data"]), media_type=found["media"])
    return kind(url)
