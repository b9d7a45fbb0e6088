"""A long conversation, played turn by turn, and what it cost: runs, bytes, prompt-cache reads kept and lost.

Everything is made from a seed. The chat product reads the context after every turn and sends it to a model whose prompt
cache is simulated as the API's works: what a call begins with is read from the cache as far as it is byte for byte what
the call before it began with; the rest is written.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from uuid import UUID

    from tests.support.blocks import Message
    from tests.support.service.in_process import Chat, Workers

Kind = Literal["chat", "agent"]

_WORDS: Final = 4_000
_REQUEST_CHARS: Final = 400
_ANSWER_CHARS: Final = 950
_ROUNDS: Final = (2, 8)
_RESULT_CHARS: Final = (8.0, 0.8)
"""Parameters of the lognormal distribution of a tool result's length: the median is 3,000 characters."""
_LONGEST_RESULT: Final = 40_000


class _Context(msgspec.Struct):
    messages: msgspec.Raw


_context = msgspec.json.Decoder(_Context).decode


class PromptCache:
    """The prompt cache of the API, for one conversation; everything counted is bytes of serialized messages."""

    def __init__(self) -> None:
        self._before = b""
        self.read = 0
        """Read from the cache."""
        self.written = 0
        """Sent anew."""
        self.lost = 0
        """Of what had been sent before: not read, as it was not what the next call began with."""
        self.breaks = 0
        """Calls that lost something."""

    def call(self, messages: bytes) -> None:
        """Send the messages of a context, a JSON array."""
        sent = messages.removesuffix(b"]")
        common = _common_prefix(self._before, sent)
        self.read += common
        self.written += len(sent) - common
        self.lost += len(self._before) - common
        self.breaks += common < len(self._before)
        self._before = sent


def _common_prefix(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Played(NamedTuple):
    """What a conversation has come to since its beginning."""

    turns: int
    appended: int
    """Bytes of serialized messages; a token is about four."""
    cache: PromptCache


def turns(kind: Kind, count: int, seed: int = 1) -> Iterator[list[Message]]:
    """Return the messages of `count` turns: of talk alone, or of an agent that calls tools."""
    rng = random.Random(seed)  # noqa: S311 - text to measure with
    words = _vocabulary(rng)
    messages = _talk(rng, words) if kind == "chat" else _work(rng, words)
    for _ in range(count):
        yield next(messages)


def play(chat: Chat, workers: Workers, conversation: UUID, sent: Iterable[list[Message]]) -> Iterator[Played]:
    """Append turn after turn, let the workers settle, read the context and send it; tell after each what it came to."""
    cache = PromptCache()
    size = 0
    for number, messages in enumerate(sent, 1):
        chat.append(conversation, messages)
        size += sum(len(json.dumps(message, ensure_ascii=False).encode()) for message in messages)
        workers.settle(conversation)
        cache.call(bytes(_context(chat.context_text(conversation)).messages))
        yield Played(number, size, cache)


def _vocabulary(rng: random.Random) -> list[str]:
    letters, weights = "etaoinshrdlucmfwypvbgkjqxz", range(26, 0, -1)
    return ["".join(rng.choices(letters, weights=weights, k=rng.randint(2, 10))) for _ in range(_WORDS)]


def _prose(rng: random.Random, words: list[str], characters: int) -> str:
    """Return words that add up to about as many characters; they compress a little worse than English does."""
    return " ".join(rng.choices(words, k=max(1, characters // 7)))[:characters]


def _result(rng: random.Random, words: list[str], characters: int) -> str:
    """Return what a tool found: every other time the text of a page, else records as JSON."""
    if rng.random() < 1 / 2:
        return _prose(rng, words, characters)
    records = [
        {"id": rng.getrandbits(40), "title": _prose(rng, words, 60), "status": rng.choice(["open", "closed"])}
        for _ in range(max(1, characters // 110))
    ]
    return json.dumps(records)


def _talk(rng: random.Random, words: list[str]) -> Iterator[list[Message]]:
    while True:
        yield [
            {"role": "user", "content": _prose(rng, words, _REQUEST_CHARS)},
            {"role": "assistant", "content": [{"type": "text", "text": _prose(rng, words, _ANSWER_CHARS)}]},
        ]


def _work(rng: random.Random, words: list[str]) -> Iterator[list[Message]]:
    number = 0
    while True:
        yield [{"role": "user", "content": _prose(rng, words, _REQUEST_CHARS)}]
        for _ in range(rng.randint(*_ROUNDS)):
            number += 1
            call = f"toolu_{number:08}"
            asked = {"type": "tool_use", "id": call, "name": "search", "input": {"query": _prose(rng, words, 60)}}
            length = min(_LONGEST_RESULT, int(rng.lognormvariate(*_RESULT_CHARS)))
            result = {"type": "tool_result", "tool_use_id": call, "content": _result(rng, words, length)}
            yield [
                {"role": "assistant", "content": [{"type": "text", "text": _prose(rng, words, 200)}, asked]},
                {"role": "user", "content": [result]},
            ]
        yield [{"role": "assistant", "content": _prose(rng, words, _ANSWER_CHARS)}]
