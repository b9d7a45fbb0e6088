"""What a conversation's model calls cost: tokens sent, read from the prompt cache and written to it."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from compaction.tokens import content_weight, json_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compaction.shapes.inner import Shape

MODEL: Final = "claude-sonnet-4-5"
"""The model whose list prices these are: the service reckons by the same."""
USD_PER_MILLION_INPUT: Final = Decimal(3)
"""Dollars for a million uncached input tokens."""
CACHE_READ_FACTOR: Final = Decimal("0.1")
CACHE_WRITE_FACTOR: Final = Decimal("1.25")
"""Prices of cached input against uncached (API documentation, prompt caching, five-minute cache)."""
CHARACTERS_PER_TOKEN: Final = 4


def tokens_of(message: Any) -> int:
    """Return about what one message costs in input tokens."""
    return -(-content_weight(message["content"]) // CHARACTERS_PER_TOKEN)


def usage_of(read: Mapping[str, int], output: int, shape: Shape) -> dict[str, Any]:
    """Return the usage of a call as its API answers with it: what was `read` as the Messages API counts it."""
    total, cached = sum(read.values()), read["cache_read_input_tokens"]
    match shape:
        case "chat":
            details = {"prompt_tokens_details": {"cached_tokens": cached}}
            return {"prompt_tokens": total, "completion_tokens": output, "total_tokens": total + output, **details}
        case "responses":
            details = {"input_tokens_details": {"cached_tokens": cached}}
            return {"input_tokens": total, "output_tokens": output, "total_tokens": total + output, **details}
        case _:
            return {**read, "output_tokens": output}


class Ledger(msgspec.Struct):
    """Counts the input tokens of successive calls; a call reads from the cache what the one before it began with."""

    fixed_tokens: int
    """System prompt and tools, the same in every call."""
    sent: int = 0
    read: int = 0
    largest: int = 0
    _last: list[Any] = []

    @classmethod
    def of(cls, system: str, tools: Sequence[Any]) -> Ledger:
        """Return an empty ledger for calls with this system prompt and these tools."""
        return cls(-(-(len(system) + len(json_text(tools))) // CHARACTERS_PER_TOKEN))

    def call(self, messages: Sequence[Any]) -> dict[str, int]:
        """Count one call and return the input side of the `usage` that the Messages API would answer with."""
        common = 0
        for mine, theirs in zip(messages, self._last, strict=False):
            if mine != theirs:
                break
            common += 1
        fixed = self.fixed_tokens if self._last else 0
        read = fixed + sum(tokens_of(message) for message in messages[:common])
        total = self.fixed_tokens + sum(tokens_of(message) for message in messages)
        self._last = list(messages)
        self.sent += total
        self.read += read
        self.largest = max(self.largest, total)
        return {
            "input_tokens": 0,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": total - read,
        }

    @property
    def usd_uncached(self) -> Decimal:
        """Dollars for every call's input without prompt caching."""
        return self.sent * USD_PER_MILLION_INPUT / 1_000_000

    @property
    def usd_cached(self) -> Decimal:
        """Dollars for every call's input with prompt caching."""
        weighted = self.read * CACHE_READ_FACTOR + (self.sent - self.read) * CACHE_WRITE_FACTOR
        return weighted * USD_PER_MILLION_INPUT / 1_000_000
