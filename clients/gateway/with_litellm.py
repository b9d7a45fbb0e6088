"""LiteLLM's SDK, which speaks Chat Completions to every provider: the first argument says to which."""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm
from questions import KEY, SCHEMA, URL, ask_all, look_up

model, base = {
    "messages": ("anthropic/claude-haiku-4-5", URL),
    "chat": ("openai/gpt-5.6", f"{URL}/v1"),
}[sys.argv[1]]
messages: list[Any] = []
# What it says of models that it does not know comes from threads, amid the answers.
litellm.suppress_debug_info = True


def ask(question: str, stream: bool) -> str:
    messages.append({"role": "user", "content": question})
    while True:
        tools = [{"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}]
        reply = litellm.completion(
            model=model, api_base=base, api_key=KEY, messages=messages, tools=tools, num_retries=0, stream=stream
        )
        if stream:
            reply = litellm.stream_chunk_builder(list(reply), messages=messages)
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            result = look_up(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


ask_all(ask)
