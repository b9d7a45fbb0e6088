"""The `openai` SDK: Chat Completions or Responses, by the first argument."""

from __future__ import annotations

import json
import sys
from typing import Any

import openai
from questions import KEY, SCHEMA, URL, ask_all, look_up

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
rows: list[Any] = []


def by_chat(stream: bool) -> tuple[str, list[Any]]:
    """Ask for a completion; return its text, and its calls by id and arguments."""
    asked: dict[str, Any] = {
        "model": "gpt-5.6",
        "messages": [{"role": "system", "content": "Be brief."}, *rows],
        "tools": [{"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}],
    }
    if stream:
        with client.chat.completions.stream(**asked) as events:
            completion = events.get_final_completion()
    else:
        completion = client.chat.completions.create(**asked)
    message = completion.choices[0].message
    rows.append(message.to_dict())
    return message.content or "", [(call.id, call.function.arguments) for call in message.tool_calls or ()]


def by_responses(stream: bool) -> tuple[str, list[Any]]:
    """Ask for a response; return its text, and its calls by id and arguments."""
    asked: dict[str, Any] = {
        "model": "gpt-5.6",
        "instructions": "Be brief.",
        "input": rows,
        "tools": [{"type": "function", "name": "look_up", "parameters": SCHEMA, "strict": False}],
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }
    if stream:
        with client.responses.stream(**asked) as events:
            response = events.get_final_response()
    else:
        response = client.responses.create(**asked)
    rows.extend(item.to_dict() for item in response.output)
    return response.output_text, [
        (item.call_id, item.arguments) for item in response.output if item.type == "function_call"
    ]


def result(identifier: str, arguments: str) -> dict[str, Any]:
    """Return what a call gives."""
    text = look_up(**json.loads(arguments))
    if sys.argv[1] == "chat":
        return {"role": "tool", "tool_call_id": identifier, "content": text}
    return {"type": "function_call_output", "call_id": identifier, "output": text}


def ask(question: str, stream: bool) -> str:
    rows.append({"role": "user", "content": question})
    while True:
        text, calls = {"chat": by_chat, "responses": by_responses}[sys.argv[1]](stream)
        if not calls:
            return text
        rows.extend(result(*call) for call in calls)


ask_all(ask)
