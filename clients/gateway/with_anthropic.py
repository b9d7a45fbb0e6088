"""The `anthropic` SDK: thinking, parallel calls, and a mark for the prompt cache that moves with the newest message."""

from __future__ import annotations

from typing import Any

import anthropic
from questions import KEY, SCHEMA, URL, ask_all, look_up

client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
messages: list[dict[str, Any]] = []


def said() -> list[dict[str, Any]]:
    """Return the history with a mark at its end."""
    *before, newest = messages
    content = newest["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    marked = [*parts[:-1], {**parts[-1], "cache_control": {"type": "ephemeral"}}]
    return [*before, {**newest, "content": marked}]


def ask(question: str, stream: bool) -> str:
    messages.append({"role": "user", "content": question})
    while True:
        asked: dict[str, Any] = {
            "model": "claude-sonnet-5",
            "max_tokens": 2_000,
            "thinking": {"type": "enabled", "budget_tokens": 1_024},
            "system": "Be brief.",
            "tools": [{"name": "look_up", "input_schema": SCHEMA}],
            "messages": said(),
        }
        if stream:
            with client.messages.stream(**asked) as events:
                reply = events.get_final_message()
        else:
            reply = client.messages.create(**asked)
        messages.append({"role": "assistant", "content": [block.to_dict() for block in reply.content]})
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in reply.content if block.type == "text")
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": look_up(**call.input)} for call in calls]
        messages.append({"role": "user", "content": results})


ask_all(ask)
