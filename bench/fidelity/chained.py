"""Ten compactions in a row: how many of the user's rules stand word for word, and what becomes of exact values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from bench.fidelity.pipeline import Memory
from bench.fidelity.recall import characters, spoken, text_of, values
from bench.fidelity.strategies import LEAST_SUMMARY_TOKENS, POLICY
from compaction.messages import is_request
from compaction.pins.pinned import Pin, standing_pins
from compaction.tokens import CHARS_PER_TOKEN
from worker.summarizers.base import SummaryError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.fidelity.recall import Message
    from bench.fidelity.sources import Source
    from compaction.policy import Policy
    from worker.summarizers.base import Summarizer

COMPACTIONS: Final = 10
LEAST_MESSAGES: Final = 100
"""Messages; conversations are joined until a chain has as many, so that each compaction has something to do."""
SUMMARY_SHARE: Final = 0.5
"""Characters of a summary for each character that comes new between two compactions."""

FIRST_RULES: Final = (
    "Always answer in British English.",
    "Never share my phone number with anyone.",
    "Keep every answer under 120 words unless I ask for more.",
)
"""Stated in the first message."""
LATER_RULES: Final = (
    "From now on, quote every price in euros.",
    "Please never book anything before I have said yes.",
    "Do not contact me after 18:00.",
    "I am allergic to nuts, so leave out everything that has nuts in it.",
    "Remember that my budget ends at 2,400 EUR.",
    "Only use suppliers from the approved list.",
    "If something clashes with Thursday 14:00, move that, not me.",
    "Dates go in ISO format.",
    "You must ask before you delete a file.",
    "My manager Ana Reis signs everything above 500 EUR.",
)
"""Stated one in each later stretch, some of them in words that do not look like a rule."""


class Chain(NamedTuple):
    """What ten compactions of one kind of conversation kept, after each of them."""

    source: str
    summarizer: str
    pinned: bool
    """Whether the later rules were pinned; those of the first message stay anyway."""
    conversations: int
    rules: tuple[float, ...]
    """Share of the rules stated so far that stand in the context word for word."""
    values: tuple[float, ...]
    """Share of the exact values that the first summary was made from."""
    spoken: tuple[float, ...]
    """Share of those among them that people or the model had used."""
    share_kept: tuple[float, ...]
    """Characters of the context for each character of the conversation so far."""
    failed: int


class _Link(NamedTuple):
    rules_held: int
    rules_stated: int
    values_held: int
    values: int
    spoken_held: int
    spoken: int
    context_characters: int
    past: int
    failed: bool


def chains_of(source: Source, *, most: int) -> list[list[Message]]:
    """Return up to `most` long conversations, short ones joined one after the other; [] where there is too little."""
    chains: list[list[Message]] = [[]]
    for messages in source.conversations:
        if len(chains[-1]) >= LEAST_MESSAGES:
            chains.append([])
        chains[-1] += messages
    return [chain for chain in chains if len(chain) >= LEAST_MESSAGES][:most]


def compact_ten_times(
    source: Source, chains: Sequence[Sequence[Message]], summarizer: Summarizer, *, pinned: bool
) -> Chain:
    """Return what is left of rules and values after each of ten compactions."""
    runs = [
        list(_links(Memory(in_pieces=source.in_pieces), messages, summarizer, pinned=pinned)) for messages in chains
    ]
    steps = [[run[number] for run in runs] for number in range(COMPACTIONS)]
    return Chain(
        source=source.name,
        summarizer=summarizer.name,
        pinned=pinned,
        conversations=len(chains),
        rules=tuple(_share(step, "rules_held", "rules_stated") for step in steps),
        values=tuple(_share(step, "values_held", "values") for step in steps),
        spoken=tuple(_share(step, "spoken_held", "spoken") for step in steps),
        share_kept=tuple(_share(step, "context_characters", "past") for step in steps),
        failed=sum(link.failed for run in runs for link in run),
    )


def _share(links: Sequence[_Link], part: str, whole: str) -> float:
    held = sum(int(getattr(link, part)) for link in links)
    return held / max(1, sum(int(getattr(link, whole)) for link in links))


def _links(memory: Memory, messages: Sequence[Message], summarizer: Summarizer, *, pinned: bool) -> Iterator[_Link]:
    """Compact after each tenth of a conversation; yield what is left."""
    size = len(messages) // COMPACTIONS
    room = int(characters(messages) / COMPACTIONS * SUMMARY_SHARE)
    tokens = max(LEAST_SUMMARY_TOKENS, room // CHARS_PER_TOKEN)
    policy = msgspec.structs.replace(POLICY, summary_max_tokens=tokens)
    stated: list[str] = []
    pins: list[Pin] = []
    past = 0
    first_values: frozenset[str] = frozenset()
    first_spoken: frozenset[str] = frozenset()
    for number in range(COMPACTIONS):
        rules = [LATER_RULES[number]] if number else [*FIRST_RULES, LATER_RULES[0]]
        stretch = list(messages[number * size : (number + 1) * size])
        at = 0 if not number else _where_to_state(stretch)
        stretch[at] = _stating(stretch[at], rules)
        stated += rules
        seq = len(memory.originals) + at
        if pinned:
            pins += [Pin(f"pin-{seq}", seq, rule) for rule in rules] if number else standing_pins(" ".join(rules), seq)
        memory.append(stretch)
        past += characters(stretch)
        if not number:
            first_values = frozenset().union(*(values(text_of(message)) for message in stretch))
            first_spoken = first_values & frozenset().union(*map(spoken, stretch))
        yield _link(memory, policy, summarizer, pins, stated, first_values, first_spoken, past)


def _link(
    memory: Memory,
    policy: Policy,
    summarizer: Summarizer,
    pins: Sequence[Pin],
    stated: Sequence[str],
    first_values: frozenset[str],
    first_spoken: frozenset[str],
    past: int,
) -> _Link:
    failed = False
    try:
        memory.summarize(policy, summarizer, pins)
    except SummaryError:
        failed = True
    texts = [text_of(message) for message in memory.context(policy)]
    known = frozenset().union(*map(values, texts))
    return _Link(
        rules_held=sum(any(rule in text for text in texts) for rule in stated),
        rules_stated=len(stated),
        values_held=len(first_values & known),
        values=len(first_values),
        spoken_held=len(first_spoken & known),
        spoken=len(first_spoken),
        context_characters=sum(map(len, texts)),
        past=past,
        failed=failed,
    )


def _where_to_state(stretch: Sequence[Message]) -> int:
    """Return the index of the first request, else of the first message from the user's side."""
    asked = [index for index, message in enumerate(stretch) if is_request(message["role"], message["content"])]
    return next(iter(asked), next(index for index, message in enumerate(stretch) if message["role"] == "user"))


def _stating(message: Message, rules: Sequence[str]) -> dict[str, Any]:
    said = " ".join(rules)
    if isinstance(message["content"], str):
        return {**message, "content": f"{message['content']}\n\n{said}"}
    return {**message, "content": [*message["content"], {"type": "text", "text": said}]}
