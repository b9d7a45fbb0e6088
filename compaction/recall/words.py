"""Words: a text as the terms that search compares, in the text's language."""

from __future__ import annotations

import re
import threading
import unicodedata
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import Stemmer

from compaction.recall.stop_words import STOP_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator

NEUTRAL: Final = ""
"""The language of a text in an unknown language. Its words are neither stemmed nor left out."""
LONGEST_TERM: Final = 64
"""Longest term, in characters. Longer ones (base64, minified code) are found by their beginning."""

_SAMPLE_CHARS: Final = 20_000
"""Characters at the beginning of a text by which its language is recognized."""
_LEAST_STOP_WORDS: Final = 2
_LEAST_SHARE: Final = 0.08
"""Least share of function words in prose. It is 0.3 to 0.5 in these languages, and near 0 in logs and code."""
_LETTER: Final = r"(?:[^\W_]|[\u0300-\u036f\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff])"
"""A letter or a digit, with vowel marks. The danda ends a sentence and is no letter."""
UNSPACED: Final = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""Scripts without spaces between words, and Korean, which attaches particles to words."""
_TOKEN: Final = re.compile(rf"{_LETTER}+(?:[._/\\:@#'\u2019+-]+{_LETTER}+)*")
_LETTERS: Final = re.compile(rf"{_LETTER}+")
_HUMPS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_HUMP: Final = re.compile(r"[a-z][A-Z]|[A-Za-z]\d|\d[A-Za-z]")
_UNSPACED_RUN: Final = re.compile(f"[{UNSPACED}]+")
_IDENTIFIER: Final = re.compile(r"[._/\\:@#+-]")
_THOUSANDS: Final = re.compile(r"(?<=\d)[,'\u2019\u00a0\u2009\u202f](?=\d{3}(?!\d))")
_POSSESSIVE: Final = re.compile(r"['\u2019]s\Z")
_LANGUAGES: Final = {
    word: tuple(language for language, stop in STOP_WORDS.items() if word in stop)
    for word in frozenset().union(*STOP_WORDS.values())
}
"""The languages of each function word."""
_stemmers = threading.local()


def language_of(text: str) -> str:
    """Return the language of `text` by its function words, or NEUTRAL if they do not decide it."""
    words = Counter(_LETTERS.findall(text[:_SAMPLE_CHARS].lower()))
    counts = dict.fromkeys(STOP_WORDS, 0)
    for word, times in words.items():
        for language in _LANGUAGES.get(word, ()):
            counts[language] += times
    best = max(counts, key=lambda language: counts[language])
    enough = max(_LEAST_STOP_WORDS, _LEAST_SHARE * words.total())
    return best if counts[best] >= enough else NEUTRAL


def terms(text: str, language: str) -> list[str]:
    """Return the terms of `text` in order: stems of words, and identifiers, paths and numbers whole and in parts."""
    stems: list[str] = []
    for token in tokens(text):
        stems += token_terms(token, language)
    return stems


def tokens(text: str) -> list[str]:
    """Return the tokens of `text` as spelled. Digit groups of numbers are joined."""
    return _TOKEN.findall(_THOUSANDS.sub("", text))


@lru_cache(maxsize=1 << 16)
def token_terms(token: str, language: str) -> tuple[str, ...]:
    """Return the terms of one token, none for a function word of `language`."""
    if len(token) > LONGEST_TERM * LONGEST_TERM:
        return (token[:LONGEST_TERM].casefold(),)
    stop = STOP_WORDS.get(language, frozenset())
    parts = [part for part in _split_token(_POSSESSIVE.sub("", token)) if part not in stop]
    stems = [_strip_accents(_stem(part, language)) for part in parts]
    if len(parts) > 1 and (_IDENTIFIER.search(token) or _HUMP.search(token)):
        stems.append(_strip_accents(token.casefold()))
    return tuple(term[:LONGEST_TERM] for term in stems)


def _split_token(token: str) -> Iterator[str]:
    """Yield the words of an identifier, or pairs of characters in scripts without spaces."""
    for letters in _LETTERS.findall(token):
        if letters.isascii():
            humps = _HUMPS.findall(letters) if _HUMP.search(letters) else (letters,)
            yield from (hump.lower() for hump in humps)
            continue
        rest = letters.casefold()
        for run in _UNSPACED_RUN.findall(rest):
            yield from (run[at : at + 2] for at in range(max(1, len(run) - 1)))
        yield from (part for part in _UNSPACED_RUN.sub(" ", rest).split() if part)


def _stem(word: str, language: str) -> str:
    if language == NEUTRAL or word.isdigit():
        return word
    by_language = _stemmers.__dict__
    # A stemmer has a buffer, so threads must not share one.
    if (stemmer := by_language.get(language)) is None:
        stemmer = by_language[language] = Stemmer.Stemmer(language, 0)
    stem: str = stemmer.stemWord(word)
    return stem


def _strip_accents(word: str) -> str:
    """Return `word` without Latin, Greek and Cyrillic accents, which people omit."""
    if word.isascii():
        return word
    apart = unicodedata.normalize("NFD", word)
    kept = "".join(character for character in apart if not "\u0300" <= character <= "\u036f")
    return unicodedata.normalize("NFC", kept)


def query_words(text: str) -> list[str]:
    """Return the distinct words of a query in order: parts of tokens, and whole identifiers, unstemmed."""
    distinct: dict[str, None] = {}
    for token in tokens(text):
        plain = _POSSESSIVE.sub("", token)
        parts = list(_split_token(plain))
        distinct.update(dict.fromkeys(parts))
        if len(parts) > 1 and (_IDENTIFIER.search(plain) or _HUMP.search(plain)):
            distinct[plain.casefold()] = None
    return list(distinct)


def capitalized_words(text: str) -> frozenset[str]:
    """Return the words of a query that are spelled like names, with one initial capital."""
    plain = (_POSSESSIVE.sub("", token) for token in tokens(text))
    return frozenset(token.casefold() for token in plain if token.istitle() and token.isalpha())


def term_places(text: str, language: str, wanted: dict[str, float]) -> list[tuple[int, float]]:
    """Return the offsets of `wanted` terms in `text`, with their weights."""
    places_found = []
    for token in _TOKEN.finditer(text):
        weight = sum(wanted.get(term, 0.0) for term in set(token_terms(token[0], language)))
        if weight:
            places_found.append((token.start(), weight))
    return places_found
