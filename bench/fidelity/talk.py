"""Everyday talk: the questions whose answers still stand together in the context that is served, against keep-last."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.fidelity.pipeline import Memory
from bench.fidelity.recall import characters, text_of
from bench.fidelity.strategies import keep_last
from compaction.policy import merge
from compaction.tokens import CHARS_PER_TOKEN
from compaction.view import view_tokens
from worker.summarizers.extractive import ExtractiveSummarizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.fidelity.recall import Message
    from bench.reach.talks import Talk
    from compaction.view import View
    from worker.summarizers.base import Summarizer

NEAR_CHARS: Final = 400
"""Characters on either side of an answer's first word in which its other words have to stand."""
TURN: Final = 2
"""Messages of a turn: after each the context is checked as the service checks it."""
THRESHOLD: Final = 8_000
LONG_THRESHOLD: Final = 40_000
"""Tokens over which talk is compacted, and long talk."""
LONG_TALK: Final = 100_000
"""Tokens from which talk is long."""


class TalkScore(NamedTuple):
    """What is left of the answers in conversations of one kind, at their ends."""

    source: str
    threshold: int
    """Tokens."""
    conversations: int
    questions: int
    whole: int
    """Questions whose answers stand together in the whole conversation."""
    served: int
    """The same in the context that is served, and in the newest messages of as many characters."""
    keep_last: int
    characters: int
    past: int
    runs: int
    seconds: float
    """Time that the summaries took."""

    @property
    def ratio(self) -> float:
        """Answers in the served context for each one in the newest messages."""
        return self.served / max(1, self.keep_last)


class Served(NamedTuple):
    """The context that is served at the end of a conversation, and what its summaries took."""

    plain: View
    recalling: View
    """The same where recall handles are on."""
    runs: int
    seconds: float

    @property
    def context(self) -> list[Message]:
        """The messages that a model is sent."""
        return [message.as_message() for message in self.plain]


def near(text: str, keywords: Sequence[str]) -> bool:
    """Tell whether all words of an answer stand within 400 characters of a place of the first one, case aside."""
    low, words = text.lower(), [word.lower() for word in keywords]
    if not words:
        return False
    return any(
        all(word in low[max(0, match.start() - NEAR_CHARS) : match.end() + NEAR_CHARS] for word in words)
        for match in re.finditer(re.escape(words[0]), low)
    )


def threshold_of(talks: Sequence[Talk]) -> int:
    """Return the tokens over which conversations of one kind are compacted here."""
    longest = max(characters(talk.messages) for talk in talks)
    return LONG_THRESHOLD if longest > LONG_TALK * CHARS_PER_TOKEN else THRESHOLD


def served(messages: Sequence[Message], threshold: int, summarizer: Summarizer | None = None) -> Served:
    """Append a conversation turn by turn, compacted whenever it is over `threshold` tokens. Raises SummaryError."""
    policy = merge({"compaction_threshold_tokens": threshold})
    memory, runs, seconds = Memory(), 0, 0.0
    for start in range(0, len(messages), TURN):
        memory.append([{"role": each["role"], "content": each["content"]} for each in messages[start : start + TURN]])
        if view_tokens(memory.working(policy).view) > threshold:
            started = time.perf_counter()
            runs += memory.summarize(policy, summarizer or ExtractiveSummarizer()) is not None
            seconds += time.perf_counter() - started
    return Served(memory.view(policy), memory.recalling_view(policy), runs, seconds)


def measure(name: str, talks: Sequence[Talk], threshold: int) -> TalkScore:
    """Count the answers that the extract leaves of each conversation."""
    rows = [_measured(talk, threshold) for talk in talks]
    sums = [sum(column) for column in zip(*rows, strict=True)]
    questions, whole, kept, last, left, past, runs = map(int, sums[:-1])
    return TalkScore(name, threshold, len(talks), questions, whole, kept, last, left, past, runs, sums[-1])


def _measured(talk: Talk, threshold: int) -> tuple[float, ...]:
    end = served(talk.messages, threshold)
    size = characters(end.context)
    texts = [
        "\n".join(map(text_of, messages))
        for messages in (talk.messages, end.context, keep_last(talk.messages, size).context)
    ]
    counts = [sum(near(text, question.keywords) for question in talk.questions) for text in texts]
    return len(talk.questions), *counts, size, characters(talk.messages), end.runs, end.seconds
