"""Talk: everyday conversation, split into short statements that are rated by how much they tell.

Values are rare in talk, so words count instead (`vocabulary`). Statements in the first person, and those about events,
plans, places and times, count the most. The patterns are English. For a few other languages the first person is known;
otherwise only words, numbers, names and question marks count.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compaction.extract.vocabulary import EMPTY, NUMBER
from compaction.messages import blocks
from compaction.recall.words import NEUTRAL, language_of, tokens
from compaction.text.clauses import CLAUSE_CHARS, chars_in, prose
from compaction.text.salience import values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SAMPLE_CHARS: Final = 20_000
"""Characters of speech by which a conversation is classified. One message contributes at most a twentieth."""
_SAMPLE_MESSAGES: Final = 200
_SPEECH_SHARES: Final = (0.6, 0.9)
_VALUE_SHARES: Final = (0.04, 0.08)
"""Shares of speech among all text, and of values among its words, between which a conversation becomes or ceases to be
talk: tasks with tools that were recorded are at 0.1 to 0.4 and 0.05 to 0.15, chats at 1 and 0.006 to 0.03."""
_CLAUSE_WORDS: Final = 3
"""Content words that a clause needs to stand alone. A shorter one stays with its neighbour."""
_LEAST_WORD: Final = 3
_WHOLE_ANSWER: Final = 400
"""Characters of a message above which each statement counts for less, so that an essay does not fill the extract."""

_FIRST_PERSON: Final = 1.0
_THIRD_PERSON: Final = 0.6
_SECOND_PERSON: Final = 0.4
_QUESTION: Final = 0.15
_EXCLAIMED: Final = 0.8
_ASIDE_FACTOR: Final = 0.4
_EXPLAINED: Final = 0.4
"""Factor for the explanation of a list item, which tells less than the item's name."""
_WISHED: Final = 0.4
_CHANGED: Final = 1.5
_NUMBERED: Final = 1.5
_NAMED: Final = 1.2
"""Factors of statements, relative to a plain one in the first person. Measured on recorded chats: for each character,
sentences in the first person answer three times as many questions as others. Questions and sentences in the second
person answer a fifth. Wishes and comments answer a third, and next to none if said to an assistant. Changing a factor
by half changes the kept answers by less than a fiftieth."""

_JOINTS: Final = re.compile(
    r"(?<=,) (?=(?:and|but|so|because|which|who|where|when|while|since|though|although|or|plus)\b)"
    r"| (?=(?:but|because|so that|while|although|though) )"
    r"| (?=and (?:i|it|he|she|we|they|you|that|my|our|his|her|their|i['\u2019]\w+|it['\u2019]s)\b)"
    r"| (?=[-\u2013\u2014]+ )|(?<=;) ",
    re.IGNORECASE,
)
_ITEM: Final = re.compile(r"((?:\d{1,2}[.)] )?[^:.!?\n]{3,60}:) (?=\S)")
_ASIDE: Final = re.compile(r"(\[[^\[\]\n]{3,400}\])")
"""Text that an application adds in square brackets, such as the description of a photo."""
_OPENING: Final = re.compile(
    r"(?:(?:and|but|so|or|plus|also) |(?:and|but|so|oh|wow|whoa|woah|yeah|yep|yup|yes|nah|well|btw|by the way|hey|hi|"
    r"hello|thanks|thank you|haha|lol|sure|ok|okay|cool|aww+|absolutely|definitely|exactly|totally|of course|for sure|"
    r"honestly|anyway|also|right|congrats|sounds \w+|that['\u2019]s \w+|i think|i guess|i mean|you know)\b"
    r"(?: (?:so much|a lot))?(?:,? [A-Z]\w+(?=[,!.]))? ?[,!.\u2013-]+ ?)+",
    re.IGNORECASE,
)
_CONJUNCTION: Final = re.compile(r"(?:\u2026 )?(?:[-\u2013\u2014]+ )?(?:(?:and|but|so|or|plus) )?", re.IGNORECASE)
_SECOND: Final = re.compile(r"\b(?:you|your|yours|y['\u2019]all|u|ur)\b", re.IGNORECASE)
_FIRST_WORDS: Final = {
    "english": "i|me|my|mine|we|us|our",
    "german": "ich|mir|mich|mein(?:e[mnrs]?)?|wir|uns(?:er(?:e[mnrs]?)?)?",
    "french": "je|j|moi|mon|ma|mes|nous|notre|nos",
    "spanish": "yo|me|mi|mis|nos|nuestr[oa]s?|tengo|estoy|soy|he",
    "italian": "io|mi|mio|mia|miei|mie|noi|nostr[oaei]|ho|sono",
    "portuguese": "eu|me|meus?|minhas?|n\u00f3s|noss[oa]s?|estou|tenho",
    "dutch": "ik|mij|me|mijn|wij|we|ons|onze",
}
_FIRST: Final = {language: re.compile(rf"\b(?:{ws})\b", re.IGNORECASE) for language, ws in _FIRST_WORDS.items()}
CHANGE: Final = re.compile(
    r"\b(?:actually|instead|changed? (?:my|our) minds?|no longer|(?:not|n['\u2019]t)\b[^.,;]{0,40} any ?more|"
    r"scratch that|on second thought|make (?:it|that)|mov(?:ed?|ing) (?:it|that) to|turns? out|not \w+ after all)\b",
    re.IGNORECASE,
)
"""Words that announce a correction."""
_WISH: Final = re.compile(
    r"\b(?:think|guess|hope|wish|feel|know|agree|sounds?|could|would|might|may|can|can['\u2019]t|cannot|"
    r"wonder(?:ed|ing)?|interested in|curious|glad|impressed|looking for|trying to (?:learn|understand)|"
    r"i['\u2019](?:d|ll))\b|^(?:that|which|who|where|when|because|so)\b",
    re.IGNORECASE,
)
"""Wishes, requests, suppositions, comments and dependent clauses."""
_NAME: Final = re.compile(r"(?<=[a-z0-9,;:\u201c\"] )[\u201c\"]?[A-Z][a-z]{2,}")


class Manner(NamedTuple):
    """The degree to which a conversation is talk, 0 to 1, and its language, or NEUTRAL."""

    talk: float
    language: str
    crowds: Mapping[str, float] = MappingProxyType({})
    """Factors for the length of messages, by the author's role. 1 for short ones."""

    @property
    def chat(self) -> float:
        """Return the degree to which messages are short, 0 to 1.

        In long messages, sentences about others are a task.
        """
        return min(self.crowds.values(), default=1.0)


class Statement(NamedTuple):
    """A clause of talk and its rating, about 1 for a statement in the first person."""

    text: str
    telling: float


def manner_of(messages: Sequence[Mapping[str, Any]], previous: Sequence[str] = ()) -> Manner:
    """Classify a conversation as talk or tool work, by its share of speech and the values in it.

    `previous` are the lines of an earlier summary. Lines about calls and results are not speech.
    """
    speech = other = sampled = 0
    sample: list[str] = []
    for line in previous:
        is_work = line.startswith(("Called ", "Result: "))
        speech, other = speech + len(line) * (not is_work), other + len(line) * is_work
    step = max(1, len(messages) // _SAMPLE_MESSAGES)
    lengths: dict[str, list[int]] = {}
    for number, message in enumerate(messages):
        content = message.get("content")
        for block in blocks(content) if isinstance(content, (str, list)) else ():
            if block.get("type") != "text":
                other += chars_in(block)
                continue
            text = str(block.get("text") or "")
            speech += len(text)
            lengths.setdefault(str(message.get("role")), []).append(len(text))
            if number % step == 0 and sampled < _SAMPLE_CHARS:
                sample.append(text[: _SAMPLE_CHARS // 20])
                sampled += len(sample[-1])
    said = "\n".join(sample)
    if not said.strip():
        return Manner(0.0, NEUTRAL)
    by_speech = _scale_between(speech / (speech + other), *_SPEECH_SHARES)
    by_values = 1.0 - _scale_between(len(values(said)) / max(1, len(said.split())), *_VALUE_SHARES)
    talk = by_speech * by_values
    crowds = {role: _length_factor(sizes) for role, sizes in lengths.items()}
    return Manner(talk, language_of(said) if talk else NEUTRAL, crowds)


def _length_factor(lengths: Sequence[int]) -> float:
    """Return the factor for statements in messages of these lengths in characters."""
    return sum(min(length, _WHOLE_ANSWER) for length in lengths) / sum(lengths) if any(lengths) else 1.0


def _scale_between(share: float, low: float, high: float) -> float:
    return min(1.0, max(0.0, (share - low) / (high - low)))


def split_statements(text: str, manner: Manner, crowd: float | None = None) -> list[Statement]:
    """Split a message into clauses that can be kept one by one, without their opening words.

    `crowd` is the factor for the length of the message. None means that `text` is the whole message.
    """
    if crowd is None:
        crowd = _length_factor([len(text)])
    out: list[Statement] = []
    for part in _ASIDE.split(text):
        is_aside = part.startswith("[") and part.endswith("]")
        for sentence in (clause for record in prose(part) for clause in record.clauses):
            telling = _rate_form(sentence, manner) * crowd
            if is_aside:
                out.append(_statement(sentence, telling * _ASIDE_FACTOR))
                continue
            item = _ITEM.match(sentence)
            if item:
                out.append(_statement(item[1], telling))
                telling *= _EXPLAINED
            out += [_statement(clause, telling) for clause in _clauses(sentence[item.end() if item else 0 :])]
    return out


def strip_opening(clause: str) -> str:
    """Return a clause without its leading conjunction or dash."""
    match = _CONJUNCTION.match(clause)
    return clause[match.end() :] if match else clause


def _rate_form(sentence: str, manner: Manner) -> float:
    """Return the rating of a sentence by its form."""
    first = _FIRST.get(manner.language)
    is_first = bool(first and first.search(sentence))
    if sentence.rstrip(" \u2026").endswith(("?", "\uff1f")):
        return _QUESTION * (2 if is_first else 1)
    others = _SECOND_PERSON if _SECOND.search(sentence) else _THIRD_PERSON * manner.chat
    telling = _FIRST_PERSON if is_first else others
    telling *= _CHANGED if CHANGE.search(sentence) else 1.0
    return telling * (_EXCLAIMED if sentence.endswith("!") else 1.0)


def _statement(clause: str, telling: float) -> Statement:
    telling *= _NUMBERED if NUMBER.search(clause) else 1.0
    telling *= _WISHED if _WISH.search(clause) else 1.0
    return Statement(clause, telling * (_NAMED if _NAME.search(clause) else 1.0))


def _clauses(sentence: str) -> list[str]:
    """Split a sentence between its clauses. None is too short to stand alone."""
    opening = _OPENING.match(sentence)
    out: list[str] = []
    for part in _JOINTS.split(sentence[opening.end() :] if opening else sentence):
        if out and (_is_thin(part) or _is_thin(out[-1])) and len(out[-1]) + len(part) < CLAUSE_CHARS:
            out[-1] = f"{out[-1]} {part}"
        elif part:
            out.append(part)
    return [part for part in out if any(map(str.isalnum, part))]


def _is_thin(clause: str) -> bool:
    return sum(len(word) >= _LEAST_WORD and word.lower() not in EMPTY for word in tokens(clause)) < _CLAUSE_WORDS
