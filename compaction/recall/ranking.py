"""Ranking: which messages of a conversation a query is about (BM25 with the conversation's own statistics)."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from compaction.recall.numbers import conversation_of
from compaction.recall.stop_words import STOP_WORDS
from compaction.recall.words import NEUTRAL, language_of, names, token_terms, words

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from compaction.recall.segments import Segment

MOST_WORDS: Final = 64
"""Words of a query that are looked up, the first ones: 256 took three times as long, and questions have a dozen."""
MOST_PLACES: Final = 100_000
"""Places of the words of a query that are weighed, the rarest words' first: what is everywhere tells nothing apart, and
a query of such words in a long conversation would take seconds. One word is weighed wherever it is."""

# Tuned on recorded everyday talk; the figures, and which of them are of other talk, are in docs/recall.md.
_SATURATION: Final = 1.2
_LENGTH_SHARE: Final = 0.75
_SPREAD: Final = (0.7, 0.5, 0.3)
"""What a word counts for messages one, two and three places from the one that has it: a talk is about it there too."""
_NAMED: Final = 0.5
"""What the name by which one side is addressed counts for each message of that side."""
_NAME_WEIGHT: Final = 0.5
_NAME_MENTIONS: Final = 8
_NAME_ONE_SIDED: Final = 4
_MOST_NAMES: Final = 8
"""Names of a query that mean a side; a question has one or two."""
_IN_TIME: Final = 1.6
"""Factor for messages of the time that the query names."""
_DIGITS: Final = 3
"""Digits of a score; messages with the same are equals, the newest first."""


class Hit(NamedTuple):
    """A message that was found."""

    seq: int
    score: float


class Ranking(NamedTuple):
    """What a search found."""

    hits: list[Hit]
    """The best first, of equals the newest."""
    searched: int
    weights: dict[str, dict[str, float]]
    """How rare each term of the query is, by language."""


class _Searched:
    """Segments as one sequence of messages: of one conversation, or of several one after the other."""

    def __init__(self, segments: Sequence[Segment], without: Collection[int]) -> None:
        self.seqs: list[int] = []
        self.lengths: list[int] = []
        self.roles = "".join(segment.roles for segment in segments)
        self.starts: list[int] = []
        self.edges: list[int] = []
        """The first place of each conversation, and the end of all."""
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

    def norm(self, place: int) -> float:
        """Return what the count of a word is weighed against in a message of this length."""
        return _SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * self.lengths[place] / self._mean)

    def number(self, first: int, last: int) -> int:
        """Return how many messages are in a range, those left out not counted."""
        start, end = bisect_left(self.seqs, first), bisect_right(self.seqs, last)
        return max(0, end - start) - sum(start <= place < end for place in self.left_out)

    def counts(self, terms: dict[str, str]) -> dict[int, int]:
        """Return how often each message has a word, whose term `terms` has by language; those left out have none."""
        counts: dict[int, int] = {}
        for start, segment in zip(self.starts, self.segments, strict=True):
            term = terms.get(segment.language)
            if term is not None and (posting := segment.postings.get(term)) is not None:
                for at in range(0, len(posting), 2):
                    counts[start + posting[at]] = posting[at + 1]
        for place in self.left_out.intersection(counts):
            del counts[place]
        return counts

    def having(self, terms: dict[str, str]) -> int:
        """Return in how many messages a word is, as far as is known without reading them."""
        return sum(
            len(segment.postings.get(term, b"")) // 2
            for segment in self.segments
            if (term := terms.get(segment.language)) is not None
        )

    def around(self, place: int) -> tuple[int, int]:
        """Return the first place and the end of the conversation that a place is in."""
        at = bisect_right(self.edges, place)
        return self.edges[at - 1], self.edges[at]

    def within(self, ranges: Sequence[tuple[int, int]]) -> frozenset[int]:
        """Return the seqs that are in any of the ranges."""
        return frozenset(
            seq
            for first, last in ranges
            for seq in self.seqs[bisect_left(self.seqs, first) : bisect_right(self.seqs, last)]
        )

    def rarity(self, having: int) -> float:
        """Return how much a word tells that so many messages have."""
        return math.log(1 + (len(self.seqs) - having + 0.5) / (having + 0.5))

    def addressed(self, counts: dict[int, int]) -> str | None:
        """Return the side that a name is of: the other one uses it, again and again."""
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
    """Return the messages that `query` is about, those with seqs in `without` and outside `first..last` left out.

    Seqs are those of one conversation, or the numbers of messages in several: the segments say. `in_time` are ranges of
    them from the times that the query names: what is said of these comes first, and where no word of the query is found
    anywhere, their messages are what was asked for.
    """
    searched = _Searched(segments, without)
    scores, weights = _scored(searched, query)
    timely = searched.within(in_time)
    if in_time and not scores:
        scores = {place: 1.0 for place, seq in enumerate(searched.seqs) if seq in timely}
    hits = [
        Hit(seq, round(score * (_IN_TIME if seq in timely else 1.0), _DIGITS))
        for place, score in scores.items()
        if first <= (seq := searched.seqs[place]) <= last and place not in searched.left_out
    ]
    hits.sort(key=lambda hit: (-hit.score, -hit.seq))
    return Ranking(hits, searched.number(first, last), weights)


def _scored(searched: _Searched, query: str) -> tuple[dict[int, float], dict[str, dict[str, float]]]:
    """Return the score of each place that a query is about, and the weights of its terms by language."""
    languages = {segment.language for segment in searched.segments}
    weights: dict[str, dict[str, float]] = {language: {} for language in languages}
    scores: dict[int, float] = {}
    named: list[tuple[str, float, dict[int, float]]] = []
    spelled_as_names = names(query)
    for word, terms in _weighed(searched, query, languages):
        if not (counts := searched.counts(terms)):
            continue
        rarity = searched.rarity(len(counts))
        side = searched.addressed(counts) if word in spelled_as_names else None
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


def _weighed(searched: _Searched, query: str, languages: Collection[str]) -> list[tuple[str, dict[str, str]]]:
    """Return the words of a query that are weighed, the rarest first, with their terms by language."""
    weighed_words = []
    for word in _asked(query, searched.segments):
        terms = {language: own[-1] for language in languages if (own := token_terms(word, language))}
        if having := searched.having(terms):
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


def _asked(query: str, segments: Sequence[Segment]) -> list[str]:
    """Return the words that a query is about: all but function words, all where it has nothing else."""
    language = language_of(query)
    if language == NEUTRAL:
        ((language, _),) = Counter(segment.language for segment in segments).most_common(1) or ((NEUTRAL, 0),)
    stop = STOP_WORDS.get(language, frozenset())
    every = words(query)[:MOST_WORDS]
    return [word for word in every if word not in stop] or every


def _word_scores(searched: _Searched, counts: dict[int, int], rarity: float) -> dict[int, float]:
    """Return what one word counts for each message that has it or is next to one."""
    own = {
        place: rarity * count * (_SATURATION + 1) / (count + searched.norm(place)) for place, count in counts.items()
    }
    scores = dict(own)
    for place, score in own.items():
        start, end = searched.around(place)
        for distance, share in enumerate(_SPREAD, 1):
            spread = score * share
            for neighbour in (place - distance, place + distance):
                if start <= neighbour < end and scores.get(neighbour, 0.0) < spread:
                    scores[neighbour] = spread
    return scores
