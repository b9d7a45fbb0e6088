"""Identifiers: UUIDv7 in the database (sortable by time), `prefix_hex` outside it."""

from __future__ import annotations

import re
import secrets
from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal
from uuid import UUID

import uuid_utils.compat

if TYPE_CHECKING:
    from collections.abc import Iterable

_TIME_SHIFT: Final = 80
"""Bits of a UUIDv7 after its time in milliseconds: 4 of version, 12 random, 2 of variant, 62 random (RFC 9562, 5.7)."""
_DIGITS: Final = re.compile(r"[0-9a-f]{32}")
Prefix = Literal["ten", "key", "conv", "run", "req", "pin", "rule", "hook", "evt", "era", "act", "rcl"]


def new_id() -> UUID:
    """Return a new identifier that sorts after earlier ones."""
    return uuid_utils.compat.uuid7()


def time_of(identifier: UUID) -> datetime | None:
    """Return when a UUIDv7 was made, in UTC; None for other UUIDs."""
    if identifier.version != 7:  # noqa: PLR2004 - the version that sorts by time
        return None
    return datetime.fromtimestamp((identifier.int >> _TIME_SHIFT) / 1_000, UTC)


def renewed(identifiers: Iterable[UUID]) -> dict[UUID, UUID]:
    """Return a new identifier for each one, of the same millisecond; they sort as the old ones do."""
    by_time: defaultdict[int, list[UUID]] = defaultdict(list)
    for identifier in sorted(set(identifiers)):
        by_time[identifier.int >> _TIME_SHIFT].append(identifier)
    renewed_ids: dict[UUID, UUID] = {}
    for time, olds in by_time.items():
        chosen: set[int] = set()
        while len(chosen) < len(olds):
            chosen.add(secrets.randbits(74))
        for old, random in zip(olds, sorted(chosen), strict=True):
            high, low = divmod(random, 1 << 62)
            renewed_ids[old] = UUID(int=time << _TIME_SHIFT | 7 << 76 | high << 64 | 2 << 62 | low)
    return renewed_ids


def external(prefix: Prefix, identifier: UUID) -> str:
    """Return an identifier as clients see it."""
    return f"{prefix}_{identifier.hex}"


def external_text(prefix: Prefix, identifier: str | None) -> str | None:
    """Return an identifier that was stored as text as clients see it."""
    return external(prefix, UUID(identifier)) if identifier else None


def parse(prefix: Prefix, text: str) -> UUID | None:
    """Return the identifier that `text` spells, or None if it is not one of that kind."""
    head, _, digits = text.partition("_")
    # int() takes signs, underscores and digits of other scripts too, which would give one identifier several names.
    return UUID(int=int(digits, 16)) if head == prefix and _DIGITS.fullmatch(digits) else None
