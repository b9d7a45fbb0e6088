"""Two versions of a context held against each other, and where a text stands in one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from compaction.messages import blocks
from compaction.pins.pinned import message_text
from compaction.text.salience import values
from compaction.tokens import json_text
from compaction.view import WRITTEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from compaction.view import ViewMessage

T = TypeVar("T")
MOST_VALUES: Final = 200
"""Values of one version that the other has not which are named."""
_encode: Final = msgspec.json.Encoder().encode


class _Encoder(NamedTuple):
    """What an encoder of JSON escapes without need: each client has one, and messages are stored as they came."""

    escaped: str = ""
    is_ascii: bool = False
    slash: str = "/"
    digits: str = "04x"

    def write(self, character: str) -> str:
        """Return how it writes a character."""
        if character == "/":
            return self.slash
        if character not in self.escaped and (character.isascii() or not self.is_ascii):
            return _encode(character).decode()[1:-1]
        pairs = character.encode("utf-16-be")
        return "".join(f"\\u{pairs[at] << 8 | pairs[at + 1]:{self.digits}}" for at in range(0, len(pairs), 2))


_ENCODERS: Final = (
    _Encoder(),
    _Encoder(is_ascii=True),  # Python's
    _Encoder(slash="\\/"),
    _Encoder(slash="\\/", is_ascii=True),  # PHP's
    _Encoder("<>&\u2028\u2029"),  # Go's, Rails'
    _Encoder("<>&='\u2028\u2029"),  # Gson's
    _Encoder("\"<>&'+`\x7f", is_ascii=True, digits="04X"),  # .NET's
)


class OnlyIn(NamedTuple, Generic[T]):
    """What one of two versions has and the other has not, in the order of each."""

    first: tuple[T, ...]
    second: tuple[T, ...]


def only_in(first: Sequence[T], second: Sequence[T]) -> OnlyIn[T]:
    """Return what is in one of two sequences and not in the other, each once."""
    return OnlyIn(_difference(first, set(second)), _difference(second, set(first)))


def _difference(these: Sequence[T], others: set[T]) -> tuple[T, ...]:
    return tuple(each for each in dict.fromkeys(these) if each not in others)


class Difference(NamedTuple):
    """What two versions of one context differ in."""

    seqs: OnlyIn[int]
    """Of messages that are shown."""
    values: OnlyIn[str]
    """Exact values: names of files, numbers, dates, addresses, MOST_VALUES at most."""


def difference(first: Sequence[ViewMessage], second: Sequence[ViewMessage]) -> Difference:
    """Return what two views of one conversation differ in."""
    seqs = only_in(_seqs(first), _seqs(second))
    said = only_in(list(_values(first)), list(_values(second)))
    return Difference(seqs, OnlyIn(said.first[:MOST_VALUES], said.second[:MOST_VALUES]))


def _seqs(view: Sequence[ViewMessage]) -> list[int]:
    return [message.seq for message in view if message.seq != WRITTEN]


def _values(view: Sequence[ViewMessage]) -> Iterator[str]:
    for message in view:
        for text in texts(message.content):
            yield from values(text)


def texts(content: Any) -> Iterable[str]:
    """Return what a message shows: its texts, results and the input of its calls."""
    calls = (json_text(block.get("input")) for block in blocks(content) if "input" in block)
    return (message_text(content), *calls)


def spellings(text: str) -> tuple[str, ...]:
    """Return how encoders of JSON write a text within a string: as it is, and with what some escape without need."""
    return tuple(dict.fromkeys("".join(map(encoder.write, text)) for encoder in _ENCODERS))
