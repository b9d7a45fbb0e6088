"""Pins and rules as requests ask for them and answers show them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from actions.types.core import Number, Strict
from runtime import ids

if TYPE_CHECKING:
    from store.tables import AnyRow


class PinIn(Strict):
    """The message to pin, or a span of its text, spelled exactly as it stands there."""

    seq: Number
    text: Annotated[str, Meta(min_length=1)] | None = None


class PinOut(Struct):
    """A text that stays in the context word for word, whatever becomes of its message."""

    id: str
    seq: int
    text: str
    created_at: datetime


class PinList(Struct):
    """All pins of a conversation."""

    data: list[PinOut]


class ProposalOut(Struct):
    """What a user said in message `seq` that may ask to forget a rule. Nothing follows from it by itself."""

    seq: int
    text: str


class RuleOut(Struct, kw_only=True):
    """An entry of the ledger: a text that stays in the context word for word, by whose request and since when.

    `source`: pinned by hand, or detected in what the user, or the system or developer message `seq`, said.
    """

    id: str
    text: str
    seq: int
    source: Literal["pinned", "detected"]
    speaker: str
    """Who said it: `user`, `assistant`, `system` or `tool`, with the name where it is known, as in `user (anna)`."""
    since: datetime
    withdrawn_at: datetime | None
    """Since when it is not in force; the message that it is of may have been replaced."""
    request_id: str | None
    duplicates: list[str]
    """Earlier and later rules in force that say the same."""
    conflicts: list[str]
    """Rules in force that cannot be followed together with this one, told from the words alone."""
    proposal: ProposalOut | None
    """Set where a user may have asked to forget it; it is in force until somebody withdraws it."""


class RuleList(Struct):
    """All rules of a conversation there ever were, in the order of their messages."""

    data: list[RuleOut]


class RuleChange(Strict):
    """False withdraws a rule; true puts one in force again, or keeps one that a user may have asked to forget."""

    in_force: bool


def pin_out(row: AnyRow, text: str) -> PinOut:
    """Return a pin as clients see it, with its text as it is shown."""
    return PinOut(ids.external("pin", row.id), row.seq, text, row.created_at)
