"""Identifiers: UUIDv7 in the database (sortable by time), `prefix_hex` outside it."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

import uuid_utils.compat

Prefix = Literal["ten", "key", "conv", "run", "req", "pin", "hook", "evt", "era"]


def new_id() -> UUID:
    """Return a new identifier that sorts after earlier ones."""
    return uuid_utils.compat.uuid7()


def external(prefix: Prefix, identifier: UUID) -> str:
    """Return an identifier as clients see it."""
    return f"{prefix}_{identifier.hex}"


def external_text(prefix: Prefix, identifier: str | None) -> str | None:
    """Return an identifier that was stored as text as clients see it."""
    return external(prefix, UUID(identifier)) if identifier else None


def parse(prefix: Prefix, text: str) -> UUID | None:
    """Return the identifier that `text` spells, or None if it is not one of that kind."""
    head, _, digits = text.partition("_")
    if head != prefix or len(digits) != 32:  # noqa: PLR2004 - hexadecimal digits of a UUID
        return None
    try:
        return UUID(hex=digits)
    except ValueError:
        return None
