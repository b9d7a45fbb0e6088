"""Handles: by what name a tool result that was cut can be had back, and what it was the result of."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from compaction.messages import blocks
from compaction.recall import references, tool
from compaction.recall.parts import text_of
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


class Handles:
    """The handles of a view's tool results, by the very blocks; they are looked up only where something is cut.

    `stored` are the messages as they were stored, before repair. Of the first `head` of them, which a snapshot has,
    those up to seq `unplaced_through` may hold blocks that repair moved there.
    """

    def __init__(self, stored: Sequence[StoredMessage], *, head: int, unplaced_through: int) -> None:
        self._stored = stored
        self._head = head
        self._unplaced_through = unplaced_through
        self._known: dict[int, tuple[Block, Handle]] | None = None

    def of(self, block: Block) -> Handle:
        """Return the handle of a result; what recall itself gave back, and what nobody stored, has none."""
        if self._known is None:
            self._known = self._read()
        return self._known.get(id(block), (block, NO_HANDLE))[1]

    @staticmethod
    def of_message(message: StoredMessage) -> Handle:
        """Return the handle of what somebody said; what compaction wrote has none."""
        return NO_HANDLE if message.seq < 0 else Handle(where=f": recall {references.message(message.seq)}")

    def keep(self, cut: Block, block: Block) -> None:
        """Let what a result was cut to have the same handle."""
        if self._known is not None and (handle := self.of(block)) is not NO_HANDLE:
            self._known[id(cut)] = (cut, handle)

    def _read(self) -> dict[int, tuple[Block, Handle]]:
        calls: dict[str, Block] = {}
        early: list[tuple[Block, str]] = []
        known: dict[int, tuple[Block, Handle]] = {}
        for place, message in enumerate(self._stored):
            if isinstance(message.content, str):
                continue
            is_placed = message.seq >= 0 and (place >= self._head or message.seq > self._unplaced_through)
            for index, block in enumerate(blocks(message.content)):
                if message.role == "assistant" and block.get("type") == "tool_use":
                    calls[str(block.get("id"))] = block
                elif message.role == "user" and block.get("type") == "tool_result":
                    where = f": recall {references.block(message.seq, index)}" if is_placed else BY_WORDS
                    call = calls.get(str(block.get("tool_use_id")))
                    if call is None:
                        early.append((block, where))
                    else:
                        _name(known, block, call, where)
        for block, where in early:
            _name(known, block, calls.get(str(block.get("tool_use_id")), {}), where)
        return known


def _name(known: dict[int, tuple[Block, Handle]], block: Block, call: Block, where: str) -> None:
    if not tool.is_call(call) and not tool.is_framed(text_of(block.get("content", ""))):
        known[id(block)] = (block, Handle(described(call), where))


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
