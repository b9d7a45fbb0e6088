"""How long recall takes, by the length of the conversation, and how long what left the context waits to be prepared."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final

from bench.measure import progress
from bench.reach.baselines import text_of
from bench.reach.evidence import CHARS_PER_TOKEN
from bench.reach.goals import MILLISECONDS, most
from bench.reach.talks import made_up

if TYPE_CHECKING:
    from typing import Any

    from bench.reach.goals import Row
    from bench.reach.service import Measured

SIZES: Final = (100, 1_000, 10_000)
REPEATS: Final = 40
TRIALS: Final = 5
LEFT: Final = 1_000
"""Messages of a conversation that leaves its context."""


def latency(measured: Measured, size: int, repeats: int) -> Row:
    """Return the milliseconds of recalls by words, by reference and by pattern in a conversation of `size` messages.

    `first` is the first one of all, which has nothing prepared to read.
    """
    progress(f"latency: {size:,} messages")
    talk = made_up(size, size)
    conversation = measured.store(talk.messages)
    measured.client.wait_settled(conversation)
    words = [{"query": question.text} for question in talk.questions or made_up(1).questions]
    first = _milliseconds(measured, conversation, words[0])
    ways: dict[str, list[dict[str, Any]]] = {
        "words": words,
        "ref": [{"ref": f"m{size // 2}"}],
        "pattern": [{"pattern": r"[A-H]\d{3}\b"}],
    }
    row: Row = {"messages": size, "first": round(first, 1)}
    for name, asked in ways.items():
        times = [_milliseconds(measured, conversation, asked[number % len(asked)]) for number in range(repeats + 3)][3:]
        row[f"{name} p50"] = round(statistics.median(times), 1)
        row[f"{name} p95"] = round(statistics.quantiles(times, n=20)[-1], 1)
    return row | most(row["words p50"], MILLISECONDS.get(size))


def preparing(measured: Measured, messages: int, trials: int) -> Row:
    """Return the milliseconds from a snapshot to the moment at which what left the context by it is prepared."""
    progress(f"prepared: {trials} conversations of {messages:,} messages")
    times = []
    for seed in range(trials):
        talk = made_up(seed, messages).messages
        # Crossed by the last messages, so that everything leaves at once.
        tokens = sum(len(text_of(message)) for message in talk) // CHARS_PER_TOKEN
        policy = {"compaction_threshold_tokens": tokens * 9 // 10, "summary_max_tokens": 500}
        times.append(measured.prepared_after(measured.store(talk, policy=policy, turn=messages)) * 1_000)
    return {
        "messages": messages,
        "trials": trials,
        "p50": round(statistics.median(times)),
        "longest": round(max(times)),
    }


def _milliseconds(measured: Measured, conversation: str, asked: dict[str, Any]) -> float:
    started = time.perf_counter()
    measured.client.recall(conversation, asked)
    return (time.perf_counter() - started) * 1_000
