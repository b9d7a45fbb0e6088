"""Contexts in the types of the model APIs' SDKs, and sent by these: a conversation that is compacted on its way."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import anthropic
import litellm
import openai
import pytest
from anthropic.types import MessageParam
from loop import ANSWERED, ASKED, MODEL, POLICY, check, client, looked_up
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter

if TYPE_CHECKING:
    from collections.abc import Callable

    from palimpsest_client import Client, Context, Shape

    Message = dict[str, Any]
    Asking = Callable[[list[Message]], tuple[list[Any], Any]]

__all__ = ["client"]

TYPES: Final[dict[Shape, TypeAdapter[Any]]] = {
    "messages": TypeAdapter(list[MessageParam]),
    "chat": TypeAdapter(list[ChatCompletionMessageParam]),
    "responses": TypeAdapter(list[ResponseInputItemParam]),
}
SCHEMA: Final = {"type": "object", "properties": {"key": {"type": "string"}}}
TOOL: Final[dict[Shape, Any]] = {
    "messages": {"name": "look_up", "input_schema": SCHEMA},
    "chat": {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}},
    "responses": {"type": "function", "name": "look_up", "parameters": SCHEMA, "strict": False},
}


def read(value: Any) -> None:
    """Read everything that was parsed: an iterable of a type is looked at when it is."""
    if isinstance(value, dict):
        for inner in value.values():
            read(inner)
    elif not isinstance(value, (str, bytes)) and hasattr(value, "__iter__"):
        for inner in value:
            read(inner)


def parsed(context: Context, shape: Shape) -> list[Message]:
    """Return a context after the SDK's own types have accepted all of it."""
    assert context.messages
    read(TYPES[shape].validate_python(context.messages, strict=True))
    return context.messages


def by_messages(messages: list[Message]) -> tuple[list[Any], Any]:
    with anthropic.Anthropic(base_url=MODEL, api_key="any", max_retries=0) as api:
        reply = api.messages.create(
            model="claude-sonnet-5",
            max_tokens=2_000,
            thinking={"type": "enabled", "budget_tokens": 1_024},
            tools=[TOOL["messages"]],
            messages=messages,
        )
    return [{"role": "assistant", "content": reply.content}], reply.usage


def by_chat(messages: list[Message]) -> tuple[list[Any], Any]:
    with openai.OpenAI(base_url=f"{MODEL}/v1", api_key="any", max_retries=0) as api:
        reply = api.chat.completions.create(model="gpt-5.6", tools=[TOOL["chat"]], messages=messages)
    return [reply.choices[0].message], reply.usage


def by_responses(messages: list[Message]) -> tuple[list[Any], Any]:
    with openai.OpenAI(base_url=f"{MODEL}/v1", api_key="any", max_retries=0) as api:
        reply = api.responses.create(
            model="gpt-5.6",
            tools=[TOOL["responses"]],
            input=messages,
            store=False,
            include=["reasoning.encrypted_content"],
        )
    return list(reply.output), reply.usage


def by_litellm(model: str, base: str) -> Asking:
    def asking(messages: list[Message]) -> tuple[list[Any], Any]:
        reply = litellm.completion(
            model=model, api_base=base, api_key="any", messages=messages, tools=[TOOL["chat"]], num_retries=0
        )
        return [reply.choices[0].message.model_dump(exclude_none=True)], reply.usage

    return asking


WAYS: Final[dict[str, tuple[Shape, Asking]]] = {
    "anthropic": ("messages", by_messages),
    "openai chat": ("chat", by_chat),
    "openai responses": ("responses", by_responses),
    "litellm to OpenAI": ("chat", by_litellm("openai/gpt-5.6", f"{MODEL}/v1")),
    "litellm to Claude": ("chat", by_litellm("anthropic/claude-sonnet-5", MODEL)),
}


def results(shape: Shape, replies: list[Message]) -> list[Message]:
    """Return the results of a reply's calls, as the shape has them."""
    if shape == "messages":
        calls = [block for block in replies[0]["content"] if block["type"] == "tool_use"]
        found = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": looked_up(call["input"]["key"])}
            for call in calls
        ]
        return [{"role": "user", "content": found}] if found else []
    if shape == "chat":
        calls = replies[0].get("tool_calls") or []
        return [
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "content": looked_up(json.loads(call["function"]["arguments"])["key"]),
            }
            for call in calls
        ]
    return [
        {
            "type": "function_call_output",
            "call_id": call["call_id"],
            "output": looked_up(json.loads(call["arguments"])["key"]),
        }
        for call in replies
        if call.get("type") == "function_call"
    ]


def talk(client: Client, conversation: str, shape: Shape, asking: Asking, question: str) -> str:
    """Ask what a conversation's model is asked, do what it calls for, and return its answer."""
    new: list[Message] = [{"role": "user", "content": question}]
    while True:
        context = client.context(conversation, shape=shape)
        messages = parsed(context, shape) if context.messages else []
        replies, usage = asking([*messages, *new])
        client.append(conversation, [*new, *replies], shape=shape, usage=usage, snapshot_version=context.version)
        check(conversation)
        stored = client.context(conversation, shape=shape).messages
        count = len(replies)
        new = results(shape, stored[-count:])
        if not new:
            return json.dumps(stored[-1])


@pytest.mark.parametrize("way", WAYS)
def test_a_conversation_that_is_compacted_on_its_way(client: Client, way: str) -> None:
    shape, asking = WAYS[way]
    conversation = client.create_conversation(policy=POLICY)["id"]
    for question, answer in zip(ASKED, ANSWERED, strict=True):
        assert answer in talk(client, conversation, shape, asking, question)
    context = client.context(conversation)
    assert context.version > 0
    assert "Row k0" in json.dumps(context.messages)
    assert "truncated for context management" in json.dumps(context.messages)
    for other in TYPES:
        parsed(client.context(conversation, shape=other), other)


def test_a_conversation_goes_from_model_to_model(client: Client) -> None:
    conversation = client.create_conversation(policy=POLICY)["id"]
    for shape, asking in [*WAYS.values(), *reversed(WAYS.values())]:
        assert ANSWERED[2] in talk(client, conversation, shape, asking, ASKED[2])
    assert client.context(conversation).version > 0


@pytest.mark.parametrize("way", WAYS)
def test_a_model_recalls(client: Client, way: str) -> None:
    shape, asking = WAYS[way]
    conversation = client.create_conversation(policy=POLICY)["id"]
    client.append(conversation, [{"role": "user", "content": "The garage opens with 4711-B."}], shape=shape)
    tool = client.recall_tool(shape)
    assert tool
    # The model calls `recall` where the code is not in view.
    before: list[Message] = [{"role": "user", "content": "How does the garage open?"}]
    replies, _ = asking(before)
    sent = json.loads(json.dumps(replies, default=lambda each: each.model_dump(mode="json", exclude_unset=True)))
    calls = {
        "messages": lambda: [block for block in sent[0]["content"] if block["type"] == "tool_use"],
        "chat": lambda: sent[0]["tool_calls"],
        "responses": lambda: [item for item in sent if item["type"] == "function_call"],
    }[shape]()
    found = [client.answer_recall(conversation, call) for call in calls]
    assert "4711-B" in json.dumps(found)
    answers = [{"role": "user", "content": found}] if shape == "messages" else found
    replies, _ = asking([*before, *sent, *answers])
    assert "It opens with 4711-B." in str(replies)
