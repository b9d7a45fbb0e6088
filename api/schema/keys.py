"""API keys as requests ask for them and answers show them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from api.schema.types import Strict

Scope = Literal["turns:write", "context:read", "audit:read", "admin"]
Moment = Annotated[datetime, Meta(tz=True)]
OVERLAP_SECONDS = 86_400
"""How long a rotated key goes on working, unless it is said otherwise: a day."""


class KeyIn(Strict):
    """A key to be made: what it is for, what it may do (`admin` includes the rest), and until when."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=4)]
    expires_at: Moment | None = None


class RotationIn(Strict):
    """How long the old key goes on working, and until when the new one does.

    Without `expires_at` the new key has as long a life as the old one was given.
    """

    overlap_seconds: Annotated[int, Meta(ge=0, le=30 * 86_400)] = OVERLAP_SECONDS
    expires_at: Moment | None = None


class KeyOut(Struct, kw_only=True):
    """A key without its secret; `last_used_at` is right to about two minutes."""

    id: str
    name: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    replaced_by: str | None


class KeyMade(KeyOut, kw_only=True):
    """A new key; `key` is what requests present, and is shown this once."""

    key: str
