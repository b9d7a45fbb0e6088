"""Handles: references by which a model can recall a shortened tool result, with a description of its call."""

from __future__ import annotations

import re
from bisect import bisect_left
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from compaction.messages import blocks
from compaction.recall import references, tool
from compaction.tokens import json_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compaction.messages import Block, Content

PIECE_CHARS: Final = 60
"""Characters of a call's name, and of its input, that a handle shows."""
BY_WORDS: Final = ": recall by words"
"""Used if repair moved blocks before the snapshot was stored, so that a block's reference is uncertain."""
ABOUT: Final = r"(?:[^\[\]\n]{1,140}, )?"
WHERE: Final = r": recall [^\[\]\n]{1,30}"
"""Regular expressions for the parts of a note before and after its number of tokens."""
_PLAIN: Final = re.compile(r"[^\w .,:;/\\@#%&+*=?!()'<>|~^$-]+")


_SHORTENED: Final = "[shortened from {tokens:,} tokens: recall {place}]"


class StoredMessage(Protocol):
    """A message with the seq of its original. The seq is negative for a message written by compaction."""

    @property
    def seq(self) -> int:
        """Return the seq."""
        ...

    @property
    def role(self) -> str:
        """Return the role."""
        ...

    @property
    def content(self) -> Content:
        """Return the content."""
        ...


class Handle(NamedTuple):
    """The parts of a note before and after the number of tokens: a description and a reference."""

    about: str = ""
    where: str = ""


NO_HANDLE: Final = Handle()
_Place: TypeAlias = tuple[int, int]
"""The index of a stored message, and the index of a block in it."""


class Handles:
    """Handles of a view's tool results, looked up by the identity of their blocks when a result is cut.

    `stored` are the messages before repair. The first `head` of them come from a snapshot. In those up to seq
    `unplaced_through`, repair may have moved blocks.
    """

    def __init__(self, stored: Sequence[StoredMessage], *, head: int, unplaced_through: int) -> None:
        self._stored = stored
        self._head = head
        self._unplaced_through = unplaced_through
        self._places: dict[int, _Place] | None = None
        self._calls: dict[str, list[tuple[int, Block]]] | None = None
        self._known: dict[int, tuple[Block, Handle]] = {}

    def handle_of(self, block: Block) -> Handle:
        """Return the handle of a result. Results of recall, and blocks that were never stored, have none."""
        if (known := self._known.get(id(block))) is not None:
            return known[1]
        if self._places is None:
            self._places = _index_tool_results(self._stored)
        place = self._places.get(id(block))
        handle = NO_HANDLE if place is None else self._build_handle(block, *place)
        self._known[id(block)] = (block, handle)
        return handle

    @staticmethod
    def message_handle(message: StoredMessage) -> Handle:
        """Return the handle of a message. A message written by compaction has none."""
        return NO_HANDLE if message.seq < 0 else Handle(where=f": recall {references.message(message.seq)}")

    def copy_handle(self, cut: Block, block: Block) -> None:
        """Register the handle of `block` for `cut`, the shortened block."""
        if (handle := self.handle_of(block)) is not NO_HANDLE:
            self._known[id(cut)] = (cut, handle)

    def _build_handle(self, block: Block, number: int, index: int) -> Handle:
        call = self._find_call(str(block.get("tool_use_id")), number)
        if tool.is_call(call):
            return NO_HANDLE
        seq = self._stored[number].seq
        is_placed = seq >= 0 and (number >= self._head or seq > self._unplaced_through)
        return Handle(describe_call(call), f": recall {references.block(seq, index)}" if is_placed else BY_WORDS)

    def _find_call(self, identifier: str, number: int) -> Block:
        """Return the call that a result in message `number` answers: the last one before it, else the last of all."""
        if number and (answered_call := _calls(self._stored[number - 1]).get(identifier)) is not None:
            return answered_call
        if self._calls is None:
            self._calls = {}
            for place, message in enumerate(self._stored):
                for name, call in _calls(message).items():
                    self._calls.setdefault(name, []).append((place, call))
        every = self._calls.get(identifier, [(0, {})])
        return every[bisect_left(every, number, key=itemgetter(0)) - 1][1]


def _index_tool_results(stored: Sequence[StoredMessage]) -> dict[int, _Place]:
    """Return the places of tool results by block identity. Names are not computed here: few results are cut."""
    return {
        id(block): (number, index)
        for number, message in enumerate(stored)
        if message.role == "user" and not isinstance(message.content, str)
        for index, block in enumerate(message.content)
        if isinstance(block, dict) and block.get("type") == "tool_result"
    }


def _calls(message: StoredMessage) -> dict[str, Block]:
    """Return a message's tool calls by id."""
    if message.role != "assistant" or isinstance(message.content, str):
        return {}
    return {str(block.get("id")): block for block in blocks(message.content) if block.get("type") == "tool_use"}


def context_block_note(seq: int, position: int, tokens: int) -> str:
    """Return the note after the outline or summary of a context block. `tokens` is the estimate of the whole block."""
    return _SHORTENED.format(tokens=tokens, place=references.context_block(seq, position))


def describe_call(call: Mapping[str, Any]) -> str:
    """Return a call as the beginning of a note, such as `web_search "lisbon flights", `, or "" without a call."""
    name = _piece(str(call.get("name") or ""))
    if not name:
        return ""
    given = call.get("input")
    texts = (value for value in given.values() if isinstance(value, str)) if isinstance(given, dict) else ()
    said = next(filter(None, map(_piece, texts)), "") or (_piece(json_text(given)) if given else "")
    return f'{name} "{said}", ' if said else f"{name}, "


def _piece(text: str) -> str:
    plain = " ".join(_PLAIN.sub(" ", text[: 4 * PIECE_CHARS]).split())
    return plain if len(plain) <= PIECE_CHARS else plain[: PIECE_CHARS - 1].rstrip() + "…"
