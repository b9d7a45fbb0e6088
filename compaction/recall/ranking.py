"""Ranking of messages for a query: BM25 with the conversation's own statistics."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from compaction.recall.numbers import conversation_of
from compaction.recall.stop_words import STOP_WORDS
from compaction.recall.words import NEUTRAL, capitalized_words, language_of, query_words, token_terms

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from compaction.recall.segments import Segment

MOST_WORDS: Final = 64
"""First words of a query that are looked up. 256 took three times as long, and a question has about a dozen."""
MOST_PLACES: Final = 100_000
"""Occurrences of query words that are scored, those of rare words first.

Common words distinguish little, and a query of them in a long conversation would take seconds. The first word is always
scored.
"""

# Tuned on recorded everyday talk; the figures, and which of them are of other talk, are in docs/recall.md.
_SATURATION: Final = 1.2
_LENGTH_SHARE: Final = 0.75
_SPREAD: Final = (0.7, 0.5, 0.3)
"""Weight of a word for messages one, two and three places away: the topic usually continues there."""
_NAMED: Final = 0.5
"""Weight of the name of one side for each message of that side."""
_NAME_WEIGHT: Final = 0.5
_NAME_MENTIONS: Final = 8
_NAME_ONE_SIDED: Final = 4
_MOST_NAMES: Final = 8
"""Names in a query that may refer to a side. A question has one or two."""
_IN_TIME: Final = 1.6
"""Factor for messages from a time that the query names."""
_DIGITS: Final = 3
"""Decimal places of a score. Among equal scores, the newest message comes first."""


class Hit(NamedTuple):
    """A message found by a search."""

    seq: int
    score: float


class Ranking(NamedTuple):
    """The result of a search."""

    hits: list[Hit]
    """The best first, and the newest first among equals."""
    searched: int
    weights: dict[str, dict[str, float]]
    """Rarity of each term of the query, by language."""


class _SearchIndex:
    """Segments of one conversation, or of several in a row, as one sequence of messages."""

    def __init__(self, segments: Sequence[Segment], without: Collection[int]) -> None:
        self.seqs: list[int] = []
        self.lengths: list[int] = []
        self.roles = "".join(segment.roles for segment in segments)
        self.starts: list[int] = []
        self.edges: list[int] = []
        """The first place of each conversation, and the end of the last one."""
        for segment in segments:
            self.starts.append(len(self.seqs))
            if not self.seqs or conversation_of(segment.seqs[0]) != conversation_of(self.seqs[-1]):
                self.edges.append(len(self.seqs))
            self.seqs += segment.seqs
            self.lengths += segment.lengths
        self.edges.append(len(self.seqs))
        left_out = frozenset(without)
        self.left_out = {place for place, seq in enumerate(self.seqs) if seq in left_out} if left_out else set[int]()
        self._mean = max(1.0, sum(self.lengths) / max(1, len(self.lengths)))
        self.segments = segments

    def length_norm(self, place: int) -> float:
        """Return BM25's length normalization for a message."""
        return _SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * self.lengths[place] / self._mean)

    def count_in_range(self, first: int, last: int) -> int:
        """Return the number of messages in a range, without excluded ones."""
        start, end = bisect_left(self.seqs, first), bisect_right(self.seqs, last)
        return max(0, end - start) - sum(start <= place < end for place in self.left_out)

    def term_frequencies(self, terms: dict[str, str]) -> dict[int, int]:
        """Return how often a word occurs in each message. `terms` has the word's term by language."""
        counts: dict[int, int] = {}
        for start, segment in zip(self.starts, self.segments, strict=True):
            term = terms.get(segment.language)
            if term is not None and (posting := segment.postings.get(term)) is not None:
                for at in range(0, len(posting), 2):
                    counts[start + posting[at]] = posting[at + 1]
        for place in self.left_out.intersection(counts):
            del counts[place]
        return counts

    def document_frequency(self, terms: dict[str, str]) -> int:
        """Return the number of messages with a word, excluded messages included."""
        return sum(
            len(segment.postings.get(term, b"")) // 2
            for segment in self.segments
            if (term := terms.get(segment.language)) is not None
        )

    def conversation_bounds(self, place: int) -> tuple[int, int]:
        """Return the first place and the end of the conversation that contains a place."""
        at = bisect_right(self.edges, place)
        return self.edges[at - 1], self.edges[at]

    def seqs_in(self, ranges: Sequence[tuple[int, int]]) -> frozenset[int]:
        return frozenset(
            seq
            for first, last in ranges
            for seq in self.seqs[bisect_left(self.seqs, first) : bisect_right(self.seqs, last)]
        )

    def rarity(self, having: int) -> float:
        """Return the inverse document frequency of a word that occurs in `having` messages."""
        return math.log(1 + (len(self.seqs) - having + 0.5) / (having + 0.5))

    def addressed_role(self, counts: dict[int, int]) -> str | None:
        """Return the role that a name refers to: the other side uses the name repeatedly."""
        sides = Counter(self.roles[place] for place in counts)
        user, assistant = sides["u"], sides["a"]
        if user + assistant < _NAME_MENTIONS:
            return None
        if user >= _NAME_ONE_SIDED * assistant:
            return "a"
        return "u" if assistant >= _NAME_ONE_SIDED * user else None


def rank(
    segments: Sequence[Segment],
    query: str,
    *,
    without: Collection[int] = (),
    first: int = 0,
    last: int = 2**63,
    in_time: Sequence[tuple[int, int]] = (),
) -> Ranking:
    """Return the messages that match `query`, without seqs in `without` and outside `first..last`.

    Seqs are those of one conversation, or message numbers across several. `in_time` are ranges of seqs from times that
    the query names. Their messages rank higher. If no word of the query is found, they are the result.
    """
    searched = _SearchIndex(segments, without)
    scores, weights = _score_places(searched, query)
    timely = searched.seqs_in(in_time)
    if in_time and not scores:
        scores = {place: 1.0 for place, seq in enumerate(searched.seqs) if seq in timely}
    hits = [
        Hit(seq, round(score * (_IN_TIME if seq in timely else 1.0), _DIGITS))
        for place, score in scores.items()
        if first <= (seq := searched.seqs[place]) <= last and place not in searched.left_out
    ]
    hits.sort(key=lambda hit: (-hit.score, -hit.seq))
    return Ranking(hits, searched.count_in_range(first, last), weights)


def _score_places(searched: _SearchIndex, query: str) -> tuple[dict[int, float], dict[str, dict[str, float]]]:
    """Return the score of each matching place, and the weights of the query's terms by language."""
    languages = {segment.language for segment in searched.segments}
    weights: dict[str, dict[str, float]] = {language: {} for language in languages}
    scores: dict[int, float] = {}
    named: list[tuple[str, float, dict[int, float]]] = []
    spelled_as_names = capitalized_words(query)
    for word, terms in _select_query_words(searched, query, languages):
        if not (counts := searched.term_frequencies(terms)):
            continue
        rarity = searched.rarity(len(counts))
        side = searched.addressed_role(counts) if word in spelled_as_names else None
        if side is not None:
            rarity *= _NAME_WEIGHT
        for language, term in terms.items():
            weights[language][term] = rarity
        of_word = _word_scores(searched, counts, rarity)
        if side is not None:
            named.append((side, rarity * _NAMED, of_word))
        for place, score in of_word.items():
            scores[place] = scores.get(place, 0.0) + score
    for side, least, of_word in named[:_MOST_NAMES]:
        for place in scores:
            if searched.roles[place] == side:
                scores[place] += max(0.0, least - of_word.get(place, 0.0))
    return scores, weights


def _select_query_words(
    searched: _SearchIndex, query: str, languages: Collection[str]
) -> list[tuple[str, dict[str, str]]]:
    """Return the query words to score, the rarest first, with their terms by language."""
    weighed_words = []
    for word in _content_words(query, searched.segments):
        terms = {language: own[-1] for language in languages if (own := token_terms(word, language))}
        if having := searched.document_frequency(terms):
            weighed_words.append((having, word, terms))
    weighed_words.sort(key=lambda each: each[0])
    places = 0
    weighed: list[tuple[str, dict[str, str]]] = []
    for having, word, terms in weighed_words:
        places += having
        if weighed and places > MOST_PLACES:
            break
        weighed.append((word, terms))
    return weighed


def _content_words(query: str, segments: Sequence[Segment]) -> list[str]:
    """Return the query's words without function words, or all of them if it has no others."""
    language = language_of(query)
    if language == NEUTRAL:
        ((language, _),) = Counter(segment.language for segment in segments).most_common(1) or ((NEUTRAL, 0),)
    stop = STOP_WORDS.get(language, frozenset())
    every = query_words(query)[:MOST_WORDS]
    return [word for word in every if word not in stop] or every


def _word_scores(searched: _SearchIndex, counts: dict[int, int], rarity: float) -> dict[int, float]:
    """Return the score that one word adds to each message that contains it or is near one."""
    own = {
        place: rarity * count * (_SATURATION + 1) / (count + searched.length_norm(place))
        for place, count in counts.items()
    }
    scores = dict(own)
    for place, score in own.items():
        start, end = searched.conversation_bounds(place)
        for distance, share in enumerate(_SPREAD, 1):
            spread = score * share
            for neighbour in (place - distance, place + distance):
                if start <= neighbour < end and scores.get(neighbour, 0.0) < spread:
                    scores[neighbour] = spread
    return scores
