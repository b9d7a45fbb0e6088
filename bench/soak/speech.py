"""What is said in a soak: conversations of several shapes, every message with a mark that no other has."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any, Final

from bench.soak.truth import Sent, digest

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

    from bench.soak.truth import KnownConversation

Message = dict[str, Any]

MARK: Final = re.compile(r"mark-(\d+)-\d+-")
SHAPES: Final = ("chat", "agent", "thinking agent", "media", "several users")
POLICY: Final[dict[str, Any]] = {
    "input_token_budget": 2_000,
    "compaction_threshold_tokens": 4_000,
    "min_savings_tokens": 100,
    "model_context_tokens": 16_000,
    "max_tool_result_chars": 40_000,
}
"""A policy in miniature, so that minutes see as many compactions as weeks do otherwise.

The cap on tool results is always named: one that is taken off again goes on counting until its messages are covered,
and a recount would differ.
"""
POLICIES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"max_tool_result_chars": 3_000},
    {"compaction_enabled": False, "max_conversation_messages": 20},
    {"total_token_budget": 9_000, "reserved_output_tokens": 1_000},
    {"protected_tail_messages": 2, "max_context_bytes": 20_000},
)
_WORDS: Final = (
    "order invoice https://shop.example/orders/{} shipped to 東京 on Tuesday; naïve café ☕ \u2028"
    " total 4,{} USD, see /srv/logs/{}.log "
)
_PIXEL: Final = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(48)).decode()
_USERS: Final = ("Ana", "Björn", "Chen", "Dalia")


class Speaker:
    """Makes the turns of conversations; each conversation has its own next number."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._open: dict[str, str] = {}
        """The call that awaits its result, by conversation."""

    def turn(self, conversation: KnownConversation) -> list[Message]:
        """Return the messages of the next turn."""
        if conversation.shape.endswith("agent"):
            return self._agent(conversation, thinks=conversation.shape.startswith("thinking"))
        if conversation.shape == "media":
            return [self._media(conversation), self._answer(conversation)]
        if conversation.shape == "several users":
            name = self._rng.choice(_USERS)
            return [
                self._request(conversation, f"{name}: "),
                *([self._answer(conversation)] if self._rng.random() < 0.5 else []),
            ]
        return [self._request(conversation), self._answer(conversation)]

    def edit(self, conversation: KnownConversation) -> list[Message]:
        """Return a request asked anew."""
        self._open.pop(conversation.id, None)
        return [self._request(conversation, "Rather: ")]

    def _request(self, conversation: KnownConversation, before: str = "") -> Message:
        return {"role": "user", "content": before + self._text(conversation, 30, 300)}

    def _answer(self, conversation: KnownConversation) -> Message:
        return {"role": "assistant", "content": self._text(conversation, 100, 1_200)}

    def _media(self, conversation: KnownConversation) -> Message:
        source = {"type": "base64", "media_type": "image/png", "data": _PIXEL}
        return {
            "role": "user",
            "content": [
                {"type": "image", "source": source},
                {"type": "text", "text": self._text(conversation, 20, 200)},
            ],
        }

    def _agent(self, conversation: KnownConversation, *, thinks: bool) -> list[Message]:
        waiting = self._open.pop(conversation.id, None)
        if waiting is None:
            return [self._request(conversation), self._call(conversation, thinks=thinks)]
        result = {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": waiting, "content": self._text(conversation, 200, 9_000)}
            ],
        }
        return [
            result,
            self._answer(conversation) if self._rng.random() < 0.15 else self._call(conversation, thinks=thinks),
        ]

    def _call(self, conversation: KnownConversation, *, thinks: bool) -> Message:
        mark = _mark(conversation)
        call = f"toolu_{mark.strip('-')}"
        self._open[conversation.id] = call
        thought = {"type": "thinking", "thinking": f"What does {mark} say?", "signature": f"sig{mark}"}
        use = {"type": "tool_use", "id": call, "name": "fetch", "input": {"page": mark}}
        return {"role": "assistant", "content": [*([thought] if thinks else []), use]}

    def _text(self, conversation: KnownConversation, least: int, most: int) -> str:
        length = self._rng.randint(least, most)
        number = self._rng.randrange(1_000, 9_999)
        words = _WORDS.format(number, number, number)
        return (_mark(conversation) + " " + words * (length // len(words) + 1))[:length]


def sent(messages: Iterable[Message]) -> tuple[Sent, ...]:
    """Return messages as they will be held against what is stored."""
    return tuple(_sent(message) for message in messages)


def marks(value: object) -> set[str]:
    """Return the marks in anything that JSON can tell."""
    return {match[0] for match in MARK.finditer(json.dumps(value))}


def said(message: Message) -> set[str]:
    """Return the marks of what has to be left of a newest message: all but thinking."""
    content = message["content"]
    kept = content if isinstance(content, str) else [block for block in content if block["type"] != "thinking"]
    return marks(kept)


def _sent(message: Message) -> Sent:
    content = message["content"]
    (mark,) = said(message)
    speaks = isinstance(content, str) or all(block["type"] in {"text", "image"} for block in content)
    return Sent(message["role"], digest(json.dumps(content, ensure_ascii=False)), mark, speaks)


def _mark(conversation: KnownConversation) -> str:
    return f"mark-{conversation.family}-{next(conversation.numbers)}-"
