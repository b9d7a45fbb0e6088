"""Conversations with questions: recorded ones from files, made-up ones where there are none."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bench.fidelity.sources import transcripts_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MESSAGES: Final = 600
FACTS: Final = (
    ("My sister {name} moved to {place} to work as a {job}.", "Where does {name} live now?"),
    ("I left the spare key with {name}, next to the {thing}.", "Who has my spare key?"),
    ("{name} is allergic to {food}, so we cooked something else.", "What can {name} not eat?"),
    ("The parcel for {name} has the number {code}.", "Which number has {name}'s parcel?"),
    ("We watched {name} play the {thing} in {place} on Saturday.", "Which instrument does {name} play?"),
    ("My flight to {place} is {code}, at seven in the morning.", "When am I flying to {place}?"),
    ("I have started to learn {thing} making with {name}.", "What am I learning with {name}?"),
    ("The doctor said that {name} should stop drinking {food}.", "What did the doctor tell {name}?"),
)
"""What is said once, and what is asked about it much later, in other words."""
WORDS: Final = {
    "name": "Anouk Bela Chidi Dagny Emre Farid Greta Hanna Ivo Jules Kaia Lars Mina Nilo Olga Pilar Quinn Rosa",
    "place": "Lisbon Bergen Kyoto Oaxaca Tartu Valparaiso Ghent Split Bologna Aarhus",
    "job": "welder nurse carpenter translator beekeeper pilot baker surveyor",
    "thing": "cello kiln accordion loom telescope harp banjo pottery",
    "food": "walnuts celery coffee shrimp mustard milk",
}
CHATTER: Final = (
    "How was your {day}?", "It was fine, a bit {mood}; I went for a walk along the {where}.", "That sounds {mood}.",
    "I read that book about the {where} again.", "Did you sleep well on {day}?", "Not really, the {where} was loud.",
    "Let us talk about {day} then.", "I will cook something {mood} tonight.", "What do you think of the {where}?",
    "I am looking forward to {day}, it will be {mood}.",
)  # fmt: skip
SMALL: Final = {
    "day": "Monday Tuesday Wednesday Thursday Friday weekend morning evening",
    "mood": "quiet long lovely tiring strange busy calm odd",
    "where": "river street garden market office station museum park",
}


class Question(NamedTuple):
    """A question, the messages that answer it, and whether one of them is enough (a whole session is named)."""

    text: str
    evidence: frozenset[int]
    one_is_enough: bool
    keywords: tuple[str, ...] = ()
    """The words of the answer."""
    answer: str = ""

    def share_found(self, returned: Sequence[int]) -> float:
        """Return the share of the evidence that is among the messages given back."""
        shared = len(self.evidence.intersection(returned))
        return float(bool(shared)) if self.one_is_enough else shared / len(self.evidence)


class Talk(NamedTuple):
    """A conversation with questions about it."""

    name: str
    messages: list[dict[str, Any]]
    questions: list[Question]


class Source(NamedTuple):
    """Conversations of one kind, under the name that the report gives them."""

    name: str
    talks: list[Talk]


def sources(files: Sequence[Path], *, count: int) -> list[Source]:
    """Return the talk of files, of those that are recorded where none is named, and `count` of the benchmark's own.

    Recorded talk is looked for where recorded conversations are: files named `talk-….jsonl`.
    """
    from_files = [
        Source(file.stem, list(recorded(file))) for file in files or sorted(transcripts_folder().glob("talk-*.jsonl"))
    ]
    return [*from_files, Source("of its own", [made_up(seed) for seed in range(count)])]


def recorded(file: Path) -> Iterator[Talk]:
    """Yield the conversations of a file of JSON lines: `id`, `messages`, and `questions` with their `evidence`."""
    for line in file.read_text(encoding="utf-8").splitlines():
        talk = json.loads(line)
        questions = [
            Question(
                each["question"],
                frozenset(each["evidence"]),
                "category" not in each,
                tuple(each.get("keywords", ())),
                str(each.get("answer", "")),
            )
            for each in talk["questions"]
            if each["evidence"]
        ]
        yield Talk(str(talk["id"]), talk["messages"], questions)


def made_up(seed: int, length: int = MESSAGES) -> Talk:
    """Return everyday talk of `length` messages, with a fact in one of fifteen; the same seed gives the same one."""
    chance = random.Random(seed)  # noqa: S311 - made-up text

    def filled(text: str, lists: dict[str, str]) -> str:
        return text.format_map({name: chance.choice(words.split()) for name, words in lists.items()})

    messages, questions = [], []
    for seq in range(length):
        text = " ".join(filled(chance.choice(CHATTER), SMALL) for _ in range(chance.randrange(1, 5)))
        if chance.random() < 1 / 15:
            fact, question = chance.choice(FACTS)
            chosen = {name: chance.choice(words.split()) for name, words in WORDS.items()}
            chosen["code"] = f"{chance.choice('ABCDEFGH')}{chance.randrange(100, 1000)}"
            text = f"{text} {fact.format_map(chosen)}"
            answer = fact.format_map(chosen)
            words = tuple(word for word in chosen.values() if word in answer)
            questions.append(Question(question.format_map(chosen), frozenset({seq}), False, words, answer))
        messages.append({"role": ("user", "assistant")[seq % 2], "content": text})
    return Talk(f"made-up-{seed}", messages, questions)
