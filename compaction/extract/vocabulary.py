"""The words of talk and their worth. An extract covers as many different ones as possible."""

from __future__ import annotations

import re
from typing import Final

from compaction.recall.words import token_terms, tokens

_LEAST_CHARS: Final = 2
"""Characters below which a word that is no number is worthless."""
_WORTH: Final = 0.25
"""Worth of a word, on the scale of a value's weight."""
_SPELLED_AS_NAME: Final = 1.6
_NUMBER_FACTOR: Final = 1.6
_AGAIN: Final = 0.35
"""Worth of each repetition of a word, as a share of the one before: the same words answer other questions too."""

NUMBER: Final = re.compile(
    r"\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|hundred|thousand|"
    r"dozen|twice|half|monday|tuesday|wednesday|thursday|friday|saturday|sunday|january|february|march|april|june|july|"
    r"august|september|october|november|december|weekly|daily|monthly)\b",
    re.IGNORECASE,
)
"""Numbers, and English words for numbers, days and months."""

_EMPTY_LIST: Final = (
    "good great nice cool awesome amazing wonderful fantastic incredible lovely beautiful super fun happy glad "
    "excited exciting sweet best better perfect special powerful inspiring important interesting thanks thank "
    "thankful grateful appreciate congrats congratulations wow yeah yep yes hey hello haha sure okay really "
    "totally definitely absolutely pretty quite kind lot lots bit stuff thing things way sort something anything "
    "everything someone everyone nothing got get gets getting gonna wanna gotta know knew think thought guess "
    "mean feel feels felt feeling look looks looking looked see seeing saw sound sounds say said tell told talk "
    "talking chat let make makes made making take takes took come came go goes going went gone want wanted wants "
    "need needed needs try tried trying keep keeps kept give gives gave help helped helps love loved loves like "
    "liked likes enjoy enjoyed hope hoping wish care always never still also even much many more most well back "
    "around here there now today one can new time times day days hear hearing heard wait agree true right whole "
    "life journey support moment moments share sharing remind reminds reminded proud luck blast believe imagine "
    "recently lately together could would should may might must since"
)
EMPTY: Final = frozenset(_EMPTY_LIST.split())
"""Words of English small talk, which are worth nothing."""


class Vocabulary:
    """The words of a conversation, and the gain from having them in an extract."""

    def __init__(self, language: str) -> None:
        self._language = language
        self._factors: dict[str, float] = {}
        self._tokens: dict[str, tuple[tuple[str, ...], float]] = {}
        self._worths: dict[str, float] = {}
        """The current worth of each word."""

    def add_clause(self, clause: str) -> tuple[str, ...]:
        """Count the words of a clause. Return those with a worth, each once."""
        words: set[str] = set()
        for position, token in enumerate(tokens(clause)):
            known = self._tokens.get(token)
            if known is None:
                known = self._tokens[token] = self._terms(token), _NUMBER_FACTOR if NUMBER.match(token) else 1.0
            terms, factor = known
            if position and token[0].isupper():
                factor = _SPELLED_AS_NAME
            for term in terms:
                words.add(term)
                if factor > self._factors.get(term, 1.0):
                    self._factors[term] = factor
        # Sorted for determinism: sums of floats depend on the order.
        return tuple(sorted(words))

    def mark_kept(self, words: tuple[str, ...]) -> None:
        """Lower the worth of `words`, which the extract now has."""
        for word in words:
            self._worths[word] = self._worth(word) * _AGAIN

    def gain(self, words: tuple[str, ...]) -> float:
        """Return the gain from `words`. Call it after every clause was added."""
        return sum(map(self._worth, words))

    def _terms(self, token: str) -> tuple[str, ...]:
        if token.lower() in EMPTY:
            return ()
        terms = token_terms(token, self._language)
        return tuple(term for term in terms if len(term) >= _LEAST_CHARS or term.isdigit())

    def _worth(self, word: str) -> float:
        worth = self._worths.get(word)
        if worth is None:
            worth = self._worths[word] = _WORTH * self._factors.get(word, 1.0)
        return worth
