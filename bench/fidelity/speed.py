"""How long the extractive summarizer takes, and whether twice the past takes twice as long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.fidelity.recall import characters
from compaction.extract.extractive import extract

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.fidelity.recall import Message
    from bench.fidelity.sources import Source

SIZES: Final = (125_000, 250_000, 500_000, 1_000_000)
"""Characters of past."""
EXTRACT_CHARS: Final = 16_384
"""Characters of the extract: what the policy's default has room for."""
_ROUNDS: Final = 3


class Timing(NamedTuple):
    """The least time of a few rounds."""

    characters: int
    messages: int
    seconds: float


def time_extracts(sources: Sequence[Source], *, short: bool) -> list[Timing]:
    """Time extracts of pasts of growing size, made of all conversations, over and over where they are not enough."""
    conversations = [messages for source in sources for messages in source.conversations]
    timings: list[Timing] = []
    for size in SIZES[:1] if short else SIZES:
        past = _of_size(conversations, size)
        taken = []
        for _ in range(1 if short else _ROUNDS):
            started = time.perf_counter()
            extract(past, max_chars=EXTRACT_CHARS)
            taken.append(time.perf_counter() - started)
        timings.append(Timing(characters(past), len(past), min(taken)))
    return timings


def _of_size(conversations: Sequence[Sequence[Message]], size: int) -> list[Message]:
    past: list[Message] = []
    while size > 0:
        for messages in conversations:
            for message in messages:
                past.append(message)
                size -= characters([message])
                if size <= 0:
                    return past
    return past
