"""API keys as requests ask for them and answers show them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from msgspec import Meta, Struct

from actions.types.core import Strict
from runtime import ids

if TYPE_CHECKING:
    from store.tenants.api_keys import ApiKey

Scope = Literal["turns:write", "context:read", "audit:read", "secrets:read", "admin", "recall:user"]
Moment = Annotated[datetime, Meta(tz=True)]
OVERLAP_SECONDS = 86_400
"""How long a rotated key goes on working, unless it is said otherwise: a day."""


class KeyIn(Strict):
    """A key to be made: what it is for, what it may do (`admin` includes the rest), and until when."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=len(get_args(Scope)))]
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


def key_out(row: ApiKey) -> KeyOut:
    """Return a key as its tenant's clients see it."""
    return KeyOut(**_fields(row))


def key_made(row: ApiKey, key: str) -> KeyMade:
    """Return a new key with its secret."""
    return KeyMade(**_fields(row), key=key)


def _fields(row: ApiKey) -> dict[str, Any]:
    fields = row._asdict()
    del fields["tenant_id"]
    fields["id"] = ids.external("key", row.id)
    fields["replaced_by"] = ids.external("key", row.replaced_by) if row.replaced_by else None
    return fields
