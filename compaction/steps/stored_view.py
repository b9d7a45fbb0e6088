"""What is stored of a snapshot besides its messages, so that a view that begins with them need not be gone through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from compaction.view import view_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.view import View, ViewMessage

_encode: Final = msgspec.json.Encoder().encode


class StoredView(NamedTuple):
    """A snapshot's messages, their JSON text as it is stored, their estimated tokens, and how many are requests.

    Nearly every snapshot begins with all that the one before it showed: comparing the two takes as good as nothing,
    since what a step leaves alone are the same objects.
    """

    messages: View = ()
    text: str = "[]"
    tokens: int = 0
    exchanges: int = 0

    def split(self, view: View) -> tuple[StoredView, View]:
        """Return what of these messages a view begins with, all or nothing, and what comes after them."""
        count = len(self.messages)
        return (self, view[count:]) if count and view[:count] == self.messages else (NOTHING, view)

    def tokens_of(self, view: View) -> int:
        """Return the estimated tokens of a view."""
        known, rest = self.split(view)
        return known.tokens + view_tokens(rest)

    def followed_by(self, text: str) -> str:
        """Return the JSON text of these messages, in their own bytes, and of others whose text is given."""
        if text == "[]" or not self.messages:
            return text if not self.messages else self.text
        return f"{self.text[:-1]},{text[1:]}"


NOTHING: Final = StoredView()


def dump_messages(view: Sequence[ViewMessage]) -> str:
    """Return a view as JSON text, `[{"role", "content"}, …]`."""
    return _encode([{"role": message.role, "content": message.content} for message in view]).decode()
