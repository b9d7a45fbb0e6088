"""Look-ahead recall: of the exact values of the past that are used again after a cut, what share the context still has.

A value is a token that carries a digit, an `@`, a `_` or two slashes and has at least four characters: identifiers,
paths, addresses, dates, amounts. Recall asks whether it still stands in the context at all; bound recall also asks
that something is said about it: at least three content words within 80 characters that stood that near to it before.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compaction.pieces import places
from compaction.view import ViewMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Message = dict[str, Any]

NEAR_CHARS: Final = 80
"""Characters on either side of a value in which words count as being about it."""
BINDING_WORDS: Final = 3
"""Content words that bind a value; fewer will do where fewer ever stood near it."""
_LEAST_VALUE_CHARS: Final = 4
_PATH_SLASHES: Final = 2

_TOKEN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:@#-]*[A-Za-z0-9]|\d")
_DIGIT: Final = re.compile(r"\d")
_WORD: Final = re.compile(r"[a-z]{4,}")
_STOP_LIST: Final = (
    "with that this from have were will their them what when which would like please they your"  # four letters or more
)
_STOP_WORDS: Final = frozenset(_STOP_LIST.split())


class Found(NamedTuple):
    """What of the wanted values a context still has."""

    wanted: frozenset[str]
    kept: frozenset[str]
    bound: frozenset[str]


class Reading(NamedTuple):
    """What a text says about values."""

    values: frozenset[str]
    near: Mapping[str, tuple[frozenset[str], ...]]
    """The content words near each value, one set for each of its places."""


def is_value(token: str) -> bool:
    """Tell whether a token carries an exact value."""
    if len(token) < _LEAST_VALUE_CHARS:
        return False
    return bool(_DIGIT.search(token)) or "@" in token or "_" in token or token.count("/") >= _PATH_SLASHES


@lru_cache(maxsize=50_000)
def values(text: str) -> frozenset[str]:
    """Return the exact values in `text`, lower case."""
    return frozenset(token.lower() for token in _TOKEN.findall(text) if is_value(token))


def content_words(text: str) -> frozenset[str]:
    """Return the words of four letters or more in lower-case `text`, those of snake_case keys included.

    Tokens with a digit, an `@` or a dot inside are values or parts of them, and give no words.
    """
    plain = (t for t in _TOKEN.findall(text) if not _DIGIT.search(t) and "@" not in t and "." not in t)
    return frozenset(word for token in plain for word in _WORD.findall(token)) - _STOP_WORDS


@lru_cache(maxsize=50_000)
def read(text: str) -> Reading:
    """Return the values in `text` and the content words near them."""
    low = text.lower()
    near: dict[str, list[frozenset[str]]] = {}
    for match in _TOKEN.finditer(low):
        if is_value(match.group()):
            before, after = low[max(0, match.start() - NEAR_CHARS) : match.start()], low[match.end() :][:NEAR_CHARS]
            near.setdefault(match.group(), []).append(content_words(f"{before} {after}"))
    return Reading(values(text), {value: tuple(sets) for value, sets in near.items()})


def text_of(message: Message) -> str:
    """Return everything that a model reads of a message: text, calls with their input, results."""
    return "\n".join(_text_of_block(block) for block in _blocks(message) if block.get("type") in _SHOWN)


_SHOWN: Final = frozenset({"text", "tool_use", "tool_result"})


def _text_of_block(block: Mapping[str, Any]) -> str:
    if block["type"] == "text":
        return str(block["text"])
    if block["type"] == "tool_use":
        return f"{block['name']} {_input(block)}"
    content = block.get("content", "")
    if isinstance(content, str):
        return content
    return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))


def _input(block: Mapping[str, Any]) -> str:
    return json.dumps(block["input"], ensure_ascii=False)


def _blocks(message: Message) -> Iterable[Mapping[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def spoken(message: Message) -> frozenset[str]:
    """Return the values that the people or the model themselves use: in text, or passed to a tool."""
    used: set[str] = set()
    for block in _blocks(message):
        if block.get("type") == "text":
            used |= values(str(block["text"]))
        elif block.get("type") == "tool_use":
            used |= values(_input(block))
    return frozenset(used)


def wholes(messages: Sequence[Message], *, in_pieces: bool = True) -> list[list[Message]]:
    """Return the messages that belong together: what other shapes have in pieces."""
    view = [ViewMessage(message["role"], message["content"]) for message in messages]
    numbered = zip(places(view, in_pieces=in_pieces), messages, strict=True)
    return [[message for _, message in run] for _, run in groupby(numbered, key=itemgetter(0))]


def joined(messages: Sequence[Message]) -> list[Message]:
    """Return messages with the pieces of each as one, which a model reads so."""
    return [
        whole[0]
        if len(whole) == 1
        else {"role": whole[0]["role"], "content": [block for message in whole for block in _blocks(message)]}
        for whole in wholes(messages)
    ]


def characters(messages: Iterable[Message]) -> int:
    """Return the characters of messages as a model reads them."""
    return sum(len(text_of(message)) for message in messages)


class Cut(NamedTuple):
    """A conversation cut in two; `before` has the content words that ever stood near each value of the past."""

    past: Sequence[Message]
    wanted: frozenset[str]
    wanted_near: frozenset[str]
    before: Mapping[str, frozenset[str]]


def cut(past: Sequence[Message], future: Sequence[Message], *, in_pieces: bool = False) -> Cut:
    """Return what the past says and the future wants to know; of another shape, `in_pieces`, read as one."""
    before: dict[str, set[str]] = {}
    said: set[str] = set()
    for message in joined(past) if in_pieces else past:
        reading = read(text_of(message))
        said |= reading.values
        for value, sets in reading.near.items():
            before.setdefault(value, set()).update(*sets)
    used = frozenset().union(*(spoken(message) for message in future))
    return Cut(past, used & said, used & before.keys(), {value: frozenset(words) for value, words in before.items()})


def find(at: Cut, context: Iterable[Message]) -> Found:
    """Return which of the values that are wanted after a cut are still in `context`."""
    kept: set[str] = set()
    bound: set[str] = set()
    for message in context:
        reading = read(text_of(message))
        kept |= reading.values & at.wanted
        bound.update(
            value
            for value in (reading.near.keys() & at.wanted_near) - bound
            if any(_binds(words, at.before[value]) for words in reading.near[value])
        )
    return Found(at.wanted, frozenset(kept), frozenset(bound))


def _binds(words: frozenset[str], before: frozenset[str]) -> bool:
    return len(words & before) >= min(BINDING_WORDS, max(1, len(before)))
