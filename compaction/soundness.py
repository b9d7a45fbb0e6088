"""Soundness: whether a view needs no repair, found out in one pass.

Nearly every conversation is sound. What is uncommon (server tools, signed summaries, results that are mended inside)
counts as unsound here, so that `repair` looks at it in earnest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from compaction.messages import INSTRUCTION, ITEM, OPAQUE, THINKING, acceptable, calling_tool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compaction.view import ViewMessage

_PLAIN: Final = frozenset({"text", "image", "document", INSTRUCTION, OPAQUE})
_SPOKEN: Final = THINKING | {"text", OPAQUE}


def is_sound(view: Iterable[ViewMessage]) -> bool:
    """Return whether the Messages API takes a view as it is.

    True is certain, False only means that `repair` has to see. Neighbouring messages of one role count as one message,
    as they do for the API. The calls of a last assistant message may be open.
    """
    pairing = _Pairing()
    for message in view:
        if message.role != pairing.role and not pairing.turns_to(message.role):
            return False
        content = message.content
        if isinstance(content, str):
            sound = pairing.takes_text(content)
        elif not isinstance(content, list) or not content:
            return False
        elif message.role == "user":
            sound = pairing.takes_user_blocks(content)
        else:
            sound = pairing.takes_assistant_blocks(content)
        if not sound:
            return False
    return pairing.role == "assistant" or not pairing.open


class _Pairing:
    """Calls and results along a view. `open` are the ids called and not answered yet."""

    __slots__ = ("open", "rest", "role")

    def __init__(self) -> None:
        self.role = ""
        self.open: set[str] = set()
        self.rest = False
        """What may not come before the results of a user message has come."""

    def turns_to(self, role: str) -> bool:
        """Begin the messages of another role; tell whether it may come now, which is a user's in the beginning."""
        if role == "user":
            self.rest = False
        elif role != "assistant" or self.role != "user" or self.open:
            return False
        self.role = role
        return True

    def takes_text(self, text: str) -> bool:
        """Return whether text may be here: after results, before calls."""
        self.rest = True
        return not self.open and bool(text) and not text.isspace()

    def takes_user_blocks(self, content: list[dict[str, Any]]) -> bool:
        """Return whether these blocks may be here: first a result for each call, then the rest."""
        for block in content:
            if block is None or acceptable("user", block) is not block:
                return False
            kind = block["type"]
            if kind == "tool_result":
                if self.rest or block["tool_use_id"] not in self.open:
                    return False
                self.open.remove(block["tool_use_id"])
            elif kind in _PLAIN:
                self.rest = True
            else:
                return False
        return not (self.rest and self.open)

    def takes_assistant_blocks(self, content: list[dict[str, Any]]) -> bool:
        """Return whether these blocks may be here: calls last, and no thinking at the end."""
        kind = ""
        for block in content:
            if block is None or acceptable("assistant", block) is not block:
                return False
            kind = block["type"]
            if kind == "tool_use":
                if block["id"] in self.open or calling_tool(block) is not None:
                    return False
                self.open.add(block["id"])
            elif kind not in _SPOKEN or (self.open and ITEM not in block):
                return False
        return kind not in THINKING or ITEM in block
