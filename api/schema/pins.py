"""Pins as requests ask for them and answers show them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from api.schema.types import Number, Strict
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


def pin_out(row: AnyRow) -> PinOut:
    """Return a pin as clients see it."""
    return PinOut(ids.external("pin", row.id), row.seq, row.text, row.created_at)
