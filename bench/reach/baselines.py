"""What recall is measured against: BM25 over single messages with two neighbours each side, and the newest messages."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_WORD: Final = re.compile(r"[a-z0-9]+")
_ENDINGS: Final = ("ing", "edly", "ed", "ies", "es", "s", "ly")
_FUNCTION_WORDS: Final = (
    "a an the of to in is was were did do does i you he she it they my your his her their and or for on at with what"
    " when where who which how why that this have has had be been are from by about me we us our as if so not will"
    " would can could should"
)
_STOP: Final = frozenset(_FUNCTION_WORDS.split())
_SATURATION: Final = 1.2
_LENGTH_SHARE: Final = 0.75
_BESIDE: Final = 2
_LEAST_STEM: Final = 3


def text_of(message: dict[str, Any]) -> str:
    """Return a message's content as text."""
    content = message["content"]
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


class PlainSearch:
    """BM25 over the messages of one conversation."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._counts = [Counter(_terms(text)) for text in texts]
        lengths = [counts.total() for counts in self._counts]
        mean = sum(lengths) / len(lengths)
        self._norms = [_SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * length / mean) for length in lengths]
        self._having = Counter(term for counts in self._counts for term in counts)

    def search(self, question: str, characters: int) -> list[int]:
        """Return the messages that fit into so many characters, the best with their neighbours first."""
        scored = []
        for place, (counts, norm) in enumerate(zip(self._counts, self._norms, strict=True)):
            score = sum(
                self._rarity(term) * counts[term] * (_SATURATION + 1) / (counts[term] + norm)
                for term in _terms(question)
                if term in counts
            )
            if score:
                scored.append((-score, place))
        wide = (
            neighbour
            for _, place in sorted(scored)
            for neighbour in range(max(0, place - _BESIDE), min(len(self._texts), place + _BESIDE + 1))
        )
        return _fitting(dict.fromkeys(wide), self._texts, characters)

    def _rarity(self, term: str) -> float:
        having = self._having[term]
        return math.log(1 + (len(self._texts) - having + 0.5) / (having + 0.5))


def keep_last(texts: Sequence[str], characters: int) -> list[int]:
    """Return the newest messages that fit into so many characters."""
    return _fitting(dict.fromkeys(reversed(range(len(texts)))), texts, characters)


def _fitting(places: dict[int, None], texts: Sequence[str], characters: int) -> list[int]:
    fitting, used = [], 0
    for place in places:
        used += len(texts[place])
        if used > characters:
            break
        fitting.append(place)
    return fitting


def _terms(text: str) -> list[str]:
    return [_stem(word) for word in _WORD.findall(text.lower()) if word not in _STOP]


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _LEAST_STEM:
            return word[: -len(ending)]
    return word
