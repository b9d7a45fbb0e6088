"""Handles: by what name a tool result that was cut can be had back, and what it was the result of."""

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
"""Where repair had moved blocks before they were stored in a snapshot, no place is certain."""
ABOUT: Final = r"(?:[^\[\]\n]{1,140}, )?"
WHERE: Final = r": recall [^\[\]\n]{1,30}"
"""What a note has of a handle before and after its figure, as regular expressions."""
_PLAIN: Final = re.compile(r"[^\w .,:;/\\@#%&+*=?!()'<>|~^$-]+")


_SHORTENED: Final = "[shortened from {tokens:,} tokens: recall {place}]"


class StoredMessage(Protocol):
    """A message with the seq of its original, negative where compaction wrote it."""

    @property
    def seq(self) -> int:
        """Return the seq."""
        ...

    @property
    def role(self) -> str:
        """Return who says it."""
        ...

    @property
    def content(self) -> Content:
        """Return what it says."""
        ...


class Handle(NamedTuple):
    """What a note says before and after how much is missing: what was cut, and how to have it back."""

    about: str = ""
    where: str = ""


NO_HANDLE: Final = Handle()
_Place: TypeAlias = tuple[int, int]
"""The index of a message among those that are stored, and of a block among the message's."""


class Handles:
    """The handles of a view's tool results, by the very blocks; they are looked up only where something is cut.

    `stored` are the messages as they were stored, before repair. Of the first `head` of them, which a snapshot has,
    those up to seq `unplaced_through` may hold blocks that repair moved there.
    """

    def __init__(self, stored: Sequence[StoredMessage], *, head: int, unplaced_through: int) -> None:
        self._stored = stored
        self._head = head
        self._unplaced_through = unplaced_through
        self._places: dict[int, _Place] | None = None
        self._calls: dict[str, list[tuple[int, Block]]] | None = None
        self._known: dict[int, tuple[Block, Handle]] = {}

    def of(self, block: Block) -> Handle:
        """Return the handle of a result; what recall itself gave back, and what nobody stored, has none."""
        if (known := self._known.get(id(block))) is not None:
            return known[1]
        if self._places is None:
            self._places = _places(self._stored)
        place = self._places.get(id(block))
        handle = NO_HANDLE if place is None else self._named(block, *place)
        self._known[id(block)] = (block, handle)
        return handle

    @staticmethod
    def of_message(message: StoredMessage) -> Handle:
        """Return the handle of what somebody said; what compaction wrote has none."""
        return NO_HANDLE if message.seq < 0 else Handle(where=f": recall {references.message(message.seq)}")

    def keep(self, cut: Block, block: Block) -> None:
        """Let what a result was cut to have the same handle."""
        if (handle := self.of(block)) is not NO_HANDLE:
            self._known[id(cut)] = (cut, handle)

    def _named(self, block: Block, number: int, index: int) -> Handle:
        call = self._call(str(block.get("tool_use_id")), number)
        if tool.is_call(call):
            return NO_HANDLE
        seq = self._stored[number].seq
        is_placed = seq >= 0 and (number >= self._head or seq > self._unplaced_through)
        return Handle(described(call), f": recall {references.block(seq, index)}" if is_placed else BY_WORDS)

    def _call(self, identifier: str, number: int) -> Block:
        """Return the call that a result in message `number` answers: the last before it, else the last of all."""
        if number and (answered_call := _calls(self._stored[number - 1]).get(identifier)) is not None:
            return answered_call
        if self._calls is None:
            self._calls = {}
            for place, message in enumerate(self._stored):
                for name, call in _calls(message).items():
                    self._calls.setdefault(name, []).append((place, call))
        every = self._calls.get(identifier, [(0, {})])
        return every[bisect_left(every, number, key=itemgetter(0)) - 1][1]


def _places(stored: Sequence[StoredMessage]) -> dict[int, _Place]:
    """Return where results are, by the very block. What they are named is for those that are cut: most never are."""
    return {
        id(block): (number, index)
        for number, message in enumerate(stored)
        if message.role == "user" and not isinstance(message.content, str)
        for index, block in enumerate(message.content)
        if isinstance(block, dict) and block.get("type") == "tool_result"
    }


def _calls(message: StoredMessage) -> dict[str, Block]:
    """Return a message's calls by their ids."""
    if message.role != "assistant" or isinstance(message.content, str):
        return {}
    return {str(block.get("id")): block for block in blocks(message.content) if block.get("type") == "tool_use"}


def of_context_block(seq: int, position: int, tokens: int) -> str:
    """Return the note behind the outline or the summary of a context block, of `tokens` by the estimate when whole."""
    return _SHORTENED.format(tokens=tokens, place=references.context_block(seq, position))


def described(call: Mapping[str, Any]) -> str:
    """Return a call as the beginning of a note, `web_search "lisbon flights", `; "" for none."""
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
