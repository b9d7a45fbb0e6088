"""Token estimates: what a message would cost in input tokens, without a tokenizer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from compaction.media.files import media_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

CHARS_PER_TOKEN: Final = 4
"""Characters of English a token (requirement S1)."""
MOST_TOKENS: Final = 100_000_000
"""Tokens of one content at most: hundreds of times what a request has room for, and far from where an integer ends."""

_DENSITY: Final = (
    # Latin letters with marks, Greek, Hebrew, Arabic, Devanagari, Thai
    (2, "[\u00c0-\u024f\u0370-\u03ff\u0590-\u077f\u0900-\u097f\u0e00-\u0e7f\u1e00-\u1fff]+"),
    # Armenian, Bengali, Tamil and the other scripts of India, Georgian
    (3, "[\u0530-\u058f\u0780-\u08ff\u0980-\u0dff\u10a0-\u10ff]+"),
    # Lao, Tibetan, Burmese, Khmer, Chinese, Japanese, Korean, emoji
    (
        4,
        (
            "[\u0e80-\u109f\u1100-\u11ff\u1780-\u1dff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef"
            "\U00016fe0-\U00018fff\U0001b000-\U0001b2ff\U0001f000-\U0001faff\U00020000-\U0003ffff]+"
        ),
    ),
    # Ethiopic
    (7, "[\u1200-\u139f]+"),
)
"""Weights of characters by script: four over the characters of a token, the mean of two public tokenizers."""
_SCRIPTS: Final = tuple((weight, re.compile(pattern)) for weight, pattern in _DENSITY)
_DIGITS: Final = b"0123456789"
_CAPITALS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LETTERS: Final = _CAPITALS + _CAPITALS.lower()
_KINDS: Final = bytes(
    ord("a")
    if byte in _LETTERS or byte > ord("~")
    else ord("0")
    if byte in _DIGITS
    else ord(" ")
    if byte <= ord(" ")
    else ord(".")
    for byte in range(256)
)
"""For each byte whether it is a letter, a digit, a space or a sign."""
_FEWEST_DIGITS: Final = 1 / 32
"""Share of digits below which a text is not searched for encoded runs: prose and code have less, base64 five times."""
_FEWEST_COMMAS: Final = 1 / 10
"""The same of commas; source maps have more and few digits, lists of words and code less."""
_SAMPLED: Final = 61
"""One byte of so many is looked at for commas."""
_FEWEST_SAMPLES: Final = 16
_MOST_WORD_LETTERS: Final = 2.5
"""Letters of a word in dumps and paths, at the mean; more are words of a language, or code."""
_PIECE_BYTES: Final = 4_096
"""Bytes of a text whose tokens are bounded together: prose beside a dump does not thin it out."""
_LEAST_RUN: Final = 20
_RUN: Final = re.compile(rb"[A-Za-z0-9+/=_-]{20,}+|[0-9.,:;+\[\]-]{20,}+")
"""Runs that words do not make: identifiers, hashes, base64, rows of numbers."""
_MAPPINGS: Final = re.compile(rb"(?:[A-Za-z0-9+/]{0,12}+[,;]){8,}+")
"""Rows of short groups without a space, as the mappings of a source map are."""
_LEAST_CAPITALS: Final = 1 / 3
"""Share of capitals in these; names have one each."""
_MAPPED: Final = 2.5
_ENCODED: Final = (2.8, 1 / 16)
_HEXADECIMAL: Final = (2.3, 1 / 4)
_NUMBERS: Final = (1.9, 1 / 2)
_ONE_NUMBER: Final = (1.3, 9 / 10)
"""Weights of a character by the least share of digits in a run: four over the characters of a token of cl100k_base."""
_MEDIA: Final = frozenset({"image", "document", "container_upload"})
_encode: Final = msgspec.json.Encoder().encode


def text_weight(text: str) -> int:
    """Return what `text` weighs in characters of English, by its scripts and what is encoded; tokens are a quarter."""
    if text.isascii():
        return len(text) + _encoded_weight(text)
    extra = (sum(map(len, script.findall(text))) * (weight - 1) for weight, script in _SCRIPTS)
    return len(text) + sum(extra) + _encoded_weight(text)


def _encoded_weight(text: str) -> int:
    """Return what encoded data, dumps, paths of drawings, source maps and numbers weigh beyond their characters."""
    data = text.encode(errors="replace")
    has_digits = _count_digits(data) >= len(data) * _FEWEST_DIGITS
    if not has_digits and not _has_many_commas(data):
        return 0
    words = data.split()
    long_words = b" ".join([word for word in words if len(word) >= _LEAST_RUN])
    extra = 0

    def weigh(run: re.Match[bytes]) -> bytes:
        nonlocal extra
        extra += _run_weight(run[0])
        return b" "

    def weigh_mappings(run: re.Match[bytes]) -> bytes:
        nonlocal extra
        weight = _mappings_weight(run[0])
        extra += weight
        return b" " if weight else run[0]

    if b"," in long_words:
        long_words = _MAPPINGS.sub(weigh_mappings, long_words)
    rest = _RUN.sub(weigh, long_words)
    if has_digits:
        rest = b" ".join([*(word for word in words if len(word) < _LEAST_RUN), rest])
        pieces = range(0, len(rest), _PIECE_BYTES)
        extra += sum([_broken_weight(rest[start : start + _PIECE_BYTES]) for start in pieces])
    return extra


def _has_many_commas(data: bytes) -> bool:
    """Return whether a text may have the mappings of a source map, by a sample of its bytes."""
    sample = data[::_SAMPLED]
    return len(sample) >= _FEWEST_SAMPLES and sample.count(b",") >= len(sample) * _FEWEST_COMMAS


def _mappings_weight(run: bytes) -> int:
    """Return what the mappings of a source map weigh beyond their characters; 0 for what only looks like some."""
    letters = len(run) - len(run.translate(None, _LETTERS))
    capitals = len(run) - len(run.translate(None, _CAPITALS))
    return int(len(run) * (_MAPPED - 1)) if letters * _LEAST_CAPITALS <= capitals < letters else 0


def _broken_weight(data: bytes) -> int:
    """Return what a dump or the path of a drawing weighs beyond its characters; 0 for a text with words.

    Letters, digits and signs alternate in them. Tokenizers split a text between these before anything else, and numbers
    after three digits: there are at least as many tokens.
    """
    kinds = data.translate(_KINDS)
    words = kinds.count(b" a") + kinds.count(b".a") + kinds.count(b"0a")
    if kinds.count(b"a") > _MOST_WORD_LETTERS * words:
        return 0
    numbers = kinds.replace(b"000", b"3").replace(b"00", b"3")
    least = (
        words + numbers.count(b"3") + numbers.count(b"0") + kinds.count(b" 0") + kinds.count(b".0") + kinds.count(b". ")
    )
    return max(0, CHARS_PER_TOKEN * least - len(data))


def _run_weight(run: bytes) -> int:
    length = len(run)
    share = _count_digits(run) / length
    if share >= _ONE_NUMBER[1]:
        weight = _ONE_NUMBER[0]
    elif share >= _NUMBERS[1] and not run.islower() and not run.isupper():
        weight = _NUMBERS[0]
    elif share >= _HEXADECIMAL[1]:
        weight = _HEXADECIMAL[0]
    elif share >= _ENCODED[1] and not run.islower() and not run.isupper():
        weight = _ENCODED[0]
    else:
        return 0
    return int(length * (weight - 1))


def _count_digits(data: bytes) -> int:
    return len(data) - len(data.translate(None, _DIGITS))


def json_text(value: Any) -> str:
    """Return `value` as compact JSON text."""
    return _encode(value).decode()


def block_weight(block: Mapping[str, Any]) -> int:  # noqa: PLR0911 - one return for each kind of block
    """Return one content block's weight in characters; tokens are a quarter of it."""
    match block.get("type"):
        case "text":
            return text_weight(_string(block.get("text")))
        case "tool_use" | "server_tool_use":
            return len(_string(block.get("name"))) + _json_weight(block.get("input", {}))
        case "tool_result":
            return content_weight(block.get("content", ""))
        case "thinking":
            return text_weight(_string(block.get("thinking")))
        case "compaction" if isinstance(block.get("content"), str):
            return text_weight(_string(block.get("content")))
        case "document" if (weight := _text_of_document(block)) is not None:
            return weight
        case "instruction":
            return text_weight(_string(block.get("text")))
        case "opaque" if isinstance(size := block.get("size"), int):
            return min(max(0, size), MOST_TOKENS * CHARS_PER_TOKEN)
        case str(kind) if kind in _MEDIA:
            facts = media_facts(block)
            return 0 if facts is None else facts.tokens * CHARS_PER_TOKEN
        case _:
            return _json_weight(block)


def content_weight(content: Any) -> int:
    """Return the weight in characters of a message's or a tool result's content."""
    if isinstance(content, str):
        return text_weight(content)
    if isinstance(content, list):
        weight = 0
        for block in content:
            if isinstance(block, dict):
                weight += block_weight(block)
        return weight
    return 0 if content is None else _json_weight(content)


def content_tokens(content: Any) -> int:
    """Return the estimated tokens of one message's content, rounded up; no more than MOST_TOKENS."""
    return min(MOST_TOKENS, -(-content_weight(content) // CHARS_PER_TOKEN))


def _json_weight(value: Any) -> int:
    encoded = _encode(value)
    return text_weight(encoded.decode())


def _text_of_document(block: Mapping[str, Any]) -> int | None:
    """Return the weight of a document that is text, None for a file."""
    source = block.get("source")
    if isinstance(source, dict) and source.get("type") == "text":
        return text_weight(_string(source.get("data")))
    if isinstance(source, dict) and source.get("type") == "content":
        return content_weight(source.get("content", ""))
    return None


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
