"""What is stored of a snapshot's messages besides them, so that a view that begins with them need not be gone through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from compaction.messages import is_request
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

    def begins(self, view: Sequence[ViewMessage]) -> bool:
        """Tell whether a view begins with all of these messages."""
        return view[: len(self.messages)] == self.messages

    def tokens_of(self, view: View) -> int:
        """Return the estimated tokens of a view."""
        if not self.begins(view):
            return view_tokens(view)
        return self.tokens + view_tokens(view[len(self.messages) :])

    def exchanges_of(self, view: View) -> int:
        """Return how many messages of a view are requests."""
        known, rest = (self.exchanges, view[len(self.messages) :]) if self.begins(view) else (0, view)
        return known + sum([is_request(message.role, message.content) for message in rest])

    def dumped(self, view: View) -> str:
        """Return a view as JSON text, `[{"role", "content"}, …]`; what it has of these messages in their own bytes."""
        if not self.messages or not self.begins(view):
            return dump_messages(view)
        rest = dump_messages(view[len(self.messages) :])
        return self.text if rest == "[]" else f"{self.text[:-1]},{rest[1:]}"


NOTHING: Final = StoredView()


def dump_messages(view: Sequence[ViewMessage]) -> str:
    """Return a view as JSON text, `[{"role", "content"}, …]`."""
    return _encode([message.as_message() for message in view]).decode()
