"""The strategies that are compared: what each leaves of a past when the context may have so many characters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from bench.fidelity.pipeline import Memory
from bench.fidelity.recall import characters, text_of
from compaction.policy import merge
from compaction.tokens import CHARS_PER_TOKEN, text_weight
from worker.summarizers.base import SummaryError
from worker.summarizers.extractive import ExtractiveSummarizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.fidelity.recall import Message
    from compaction.policy import Policy
    from worker.summarizers.base import Summarizer

PROTECTED_TAIL: Final = 2
"""Newest messages that are left alone: the past is cut anywhere, and its end is small beside the budgets."""
LEAST_SUMMARY_TOKENS: Final = 64
"""The least that a policy may give a summary; taken where the messages that stay fill the budget by themselves."""
MOST_SUMMARY_TOKENS: Final = 128_000
TIGHTER: Final = 0.97
"""Share of its tokens that a summary has the next time where it had too many characters."""
POLICY: Final = merge({"protected_tail_messages": PROTECTED_TAIL, "min_savings_tokens": 0})


class Left(NamedTuple):
    """The context that a strategy leaves; `failed` says that its summarizer gave up and messages were dropped."""

    context: list[Message]
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to make a context of a past."""

    name: str
    shorten: Callable[[Sequence[Message], int], Left]
    """From the messages and the characters that the context may have."""
    is_sized: bool = True
    """Whether it heeds the characters."""
    asks_model: bool = False


def strategies(model: Summarizer | None, *, in_pieces: bool = False) -> list[Strategy]:
    """Return every strategy; those that ask a model only where there is one.

    `in_pieces` tells that conversations are in another shape than the Messages API's.
    """

    def summary_of(past: Sequence[Message], chars: int, summarizer: Summarizer, *, cut_results: bool = False) -> Left:
        return summarized(past, chars, summarizer, cut_results=cut_results, in_pieces=in_pieces)

    extractive = ExtractiveSummarizer()
    asked = [Strategy("model", lambda past, chars: summary_of(past, chars, model), asks_model=True)] if model else []
    return [
        Strategy("keep last N", keep_last),
        Strategy("tool results cut", partial(tool_results_cut, in_pieces=in_pieces), is_sized=False),
        Strategy("extractive", lambda past, chars: summary_of(past, chars, extractive)),
        *asked,
        Strategy(
            "full ladder",
            lambda past, chars: summary_of(past, chars, model or extractive, cut_results=True),
            asks_model=model is not None,
        ),
    ]


def keep_last(past: Sequence[Message], chars: int) -> Left:
    """Return the newest messages that fit, one at least."""
    kept: list[Message] = []
    room = chars
    for message in reversed(past):
        room -= len(text_of(message))
        if room < 0 and kept:
            break
        kept.append(message)
    return Left(kept[::-1])


def tool_results_cut(past: Sequence[Message], _: int, *, in_pieces: bool = False) -> Left:
    """Return everything, with older tool results cut as the policy's default has it."""
    memory = Memory(past, in_pieces=in_pieces)
    memory.cut_tool_results(POLICY)
    return Left(memory.context(POLICY))


def summarized(
    past: Sequence[Message],
    chars: int,
    summarizer: Summarizer,
    *,
    cut_results: bool = False,
    in_pieces: bool = False,
) -> Left:
    """Return the past compacted by the product: a summary of the size that makes the whole context fit."""
    density = density_of(past)
    while True:
        left = _summarized(past, chars, density, summarizer, cut_results=cut_results, in_pieces=in_pieces)
        # What is kept may have more characters a token than the past; a model is not asked twice.
        if density <= 1 or summarizer.model is not None or characters(left.context) <= chars:
            return left
        density = max(1.0, density * TIGHTER)


def _summarized(
    past: Sequence[Message],
    chars: int,
    density: float,
    summarizer: Summarizer,
    *,
    cut_results: bool,
    in_pieces: bool,
) -> Left:
    memory = Memory(past, in_pieces=in_pieces)
    if cut_results:
        memory.cut_tool_results(POLICY)
    policy = fitting(memory, chars, density)
    failed = None
    try:
        memory.summarize(policy, summarizer)
    except SummaryError as error:
        failed = error.code
        memory.drop(policy)
    return Left(memory.context(policy), failed)


def density_of(messages: Sequence[Message]) -> float:
    """Return the weight of a character of messages, see `tokens.text_weight`."""
    texts = [text_of(message) for message in messages]
    return sum(map(text_weight, texts)) / max(1, sum(map(len, texts)))


def fitting(memory: Memory, chars: int, density: float) -> Policy:
    """Return the policy whose summaries make the whole context `chars` characters, as nearly as a policy can."""
    around = memory.around_summary(POLICY)
    room = chars - characters(message.as_message() for message in around or ())
    tokens = min(max(LEAST_SUMMARY_TOKENS, int(room * density) // CHARS_PER_TOKEN), MOST_SUMMARY_TOKENS)
    return msgspec.structs.replace(POLICY, summary_max_tokens=tokens)
