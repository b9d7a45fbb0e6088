"""Plain conversations of known size, for tests in which the words do not matter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.blocks import Message


def prose(label: str, tokens: int) -> str:
    """Return a text of exactly `tokens` estimated tokens that begins with its label."""
    text = f"{label}: " + "lorem ipsum dolor sit amet " * (tokens // 6 + 1)
    return text[: tokens * 4]


def request(label: str, tokens: int = 20) -> Message:
    return {"role": "user", "content": prose(label, tokens)}


def answer(label: str, tokens: int = 20) -> Message:
    return {"role": "assistant", "content": prose(label, tokens)}


def exchanges(count: int, tokens: int, *, start: int = 0) -> list[Message]:
    """Return `count` requests with their answers, `tokens` each message."""
    return [
        message
        for number in range(start, start + count)
        for message in (request(f"request {number}", tokens), answer(f"answer {number}", tokens))
    ]


def call(number: int, *, thinking: bool = False, names: int = 1) -> Message:
    """Return an assistant message with tool calls, signed thinking first if wanted."""
    content: list[dict[str, Any]] = []
    if thinking:
        content.append({"type": "thinking", "thinking": f"Let me look at {number}.", "signature": f"sig{number}"})
    content += [
        {"type": "tool_use", "id": f"toolu_{number}_{place}", "name": "fetch", "input": {"page": number}}
        for place in range(names)
    ]
    return {"role": "assistant", "content": content}


def result(number: int, tokens: int, *, names: int = 1) -> Message:
    """Return the results that answer `call(number)`, `tokens` each."""
    return {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": f"toolu_{number}_{place}",
                "content": prose(f"page {number}.{place} of https://jobs.example.com/{number}", tokens),
            }
            for place in range(names)
        ],
    }


def rounds(count: int, tokens: int, *, start: int = 0, thinking: bool = False) -> list[Message]:
    """Return `count` tool rounds, `tokens` each result."""
    return [
        message
        for number in range(start, start + count)
        for message in (call(number, thinking=thinking), result(number, tokens))
    ]


def results_of(messages: Iterable[Message]) -> list[Any]:
    """Return the contents of all tool results."""
    return [
        block["content"]
        for message in messages
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "tool_result"
    ]


def look_up(number: int) -> list[Message]:
    """Return an exchange with one call, whose result is of some 3,000 characters."""
    used = {"type": "tool_use", "id": f"t{number}", "name": "look", "input": {"n": number}}
    found = {"type": "tool_result", "tool_use_id": f"t{number}", "content": f"result {number} " + "x" * 3_000}
    return [
        {"role": "user", "content": f"Question {number}"},
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [found]},
        {"role": "assistant", "content": f"Answer {number}"},
    ]


def chat(count: int, chars: int = 400, first: int = 0) -> list[Message]:
    """Return `count` exchanges of some `chars` characters a message, which say whose they are and which."""
    return [
        {"role": role, "content": f"{role} {number} " + "x" * chars}
        for number in range(first, first + count)
        for role in ("user", "assistant")
    ]
