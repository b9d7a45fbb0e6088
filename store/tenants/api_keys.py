"""API keys: made, listed, revoked and rotated.

A key is `key_<id>.<secret>`. The id finds the row; the secret is 256 bits from the system's generator, stored only as
its SHA-256 (a slow hash protects weak secrets; these are not, and it would be a way to burn the API's CPU).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import Connection, func, insert, or_, select, text, update

from runtime import ids
from store.tables import api_keys
from store.tenants import tenants

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any
    from uuid import UUID

    from sqlalchemy import ColumnElement, Select

BY_NAME_ONLY: Final = ("recall:user",)
"""What nobody is allowed but by its name: `admin` does not include it, and no key has it unless it is asked for."""
CHAT_BACKEND: Final = ("turns:write", "context:read")
"""Scopes that a chat backend needs."""
USUAL: Final = (*CHAT_BACKEND, "audit:read", "secrets:read", "admin")
"""Scopes of an administrator's key; `admin` includes the others."""
SCOPES: Final = (*USUAL, *BY_NAME_ONLY)
"""What a key may be allowed."""
MAXIMUM: Final = 1_000
"""Keys that a tenant may have in force at a time: each is a row that nothing ever removes."""
ROTATING: Final = 2
"""Times as many may be in force through rotations: every key may be on its way out beside the one that replaces it."""

FURTHEST: Final = timedelta(days=36_525)
"""The longest life of a key that expires at all."""


class ApiKey(NamedTuple):
    """What is known of a key once its secret is gone."""

    id: UUID
    tenant_id: UUID
    name: str
    scopes: Sequence[str]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    """To about two minutes; None = not used so far, or not since uses are noted."""
    revoked_at: datetime | None
    replaced_by: UUID | None
    """The key that a rotation made in its place."""

    def in_force(self, now: datetime) -> bool:
        """Tell whether the key opens anything."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


class TooManyKeysError(Exception):
    """The tenant has as many keys in force as it may."""


class AlreadyReplacedError(Exception):
    """The key was rotated before; `replaced_by` is what took its place."""

    def __init__(self, replaced_by: UUID) -> None:
        super().__init__(f"replaced by {ids.external('key', replaced_by)}")
        self.replaced_by = replaced_by


_k = api_keys.c
_SHOWN: Final = tuple(_k[name] for name in ApiKey._fields)


def hash_secret(secret: str) -> bytes:
    """Return what is stored of a secret."""
    return hashlib.sha256(secret.encode()).digest()


def split(key: str) -> tuple[UUID, str] | None:
    """Return the id and the secret of a presented key, or None if it has not the shape of one."""
    name, _, secret = key.partition(".")
    identifier = ids.parse("key", name)
    return (identifier, secret) if identifier and secret else None


def secret_matches(secret: str, stored_hash: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(hash_secret(secret), stored_hash)


def create(
    connection: Connection,
    tenant_id: UUID,
    name: str,
    scopes: Collection[str] = USUAL,
    expires_at: datetime | None = None,
) -> tuple[ApiKey, str]:
    """Make a key; return its row and the key itself, which nobody can show again.

    Raise TooManyKeysError if the tenant has as many as it may.
    """
    return _create(connection, tenant_id, name, scopes, expires_at, at_most=MAXIMUM)


def _create(
    connection: Connection,
    tenant_id: UUID,
    name: str,
    scopes: Collection[str],
    expires_at: datetime | None,
    *,
    at_most: int,
) -> tuple[ApiKey, str]:
    tenants.lock(connection, tenant_id)
    others = select(func.count()).where(_k.tenant_id == tenant_id, _in_force())
    if connection.execute(others).scalar_one() >= at_most:
        raise TooManyKeysError
    identifier, secret = ids.new_id(), secrets.token_urlsafe(32)
    row = connection.execute(
        insert(api_keys)
        .values(
            id=identifier,
            tenant_id=tenant_id,
            name=name,
            scopes=[scope for scope in SCOPES if scope in scopes],
            secret_hash=hash_secret(secret),
            expires_at=expires_at,
        )
        .returning(*_SHOWN)
    ).one()
    return ApiKey(*row), f"{ids.external('key', identifier)}.{secret}"


def rotate(
    connection: Connection, tenant_id: UUID, key_id: UUID, overlap: timedelta, expires_at: datetime | None = None
) -> tuple[ApiKey, str] | None:
    """Make a key with the same name and scopes; return it as `create` does, None if there is no such key in force.

    The old one expires after `overlap`, if not before. Without `expires_at` the new one has as long a life as the old
    one was given. Raise AlreadyReplacedError or TooManyKeysError.
    """
    row = connection.execute(_one(tenant_id, key_id).where(_in_force()).with_for_update()).one_or_none()
    if row is None:
        return None
    old = ApiKey(*row)
    if old.replaced_by is not None:
        raise AlreadyReplacedError(old.replaced_by)
    if expires_at is None and old.expires_at is not None:
        expires_at = datetime.now(UTC) + (old.expires_at - old.created_at)
    new_key = _create(connection, tenant_id, old.name, old.scopes, expires_at, at_most=ROTATING * MAXIMUM)
    connection.execute(
        update(api_keys)
        .where(_k.id == key_id, _k.tenant_id == tenant_id)
        .values(expires_at=func.least(_k.expires_at, func.now() + overlap), replaced_by=new_key[0].id)
    )
    return new_key


def all_of(connection: Connection, tenant_id: UUID) -> list[ApiKey]:
    """Return a tenant's keys, oldest first."""
    return [ApiKey(*row) for row in connection.execute(_of(tenant_id).order_by(_k.id))]


def page(
    connection: Connection, tenant_id: UUID, *, limit: int, after: UUID | None = None, before: UUID | None = None
) -> list[ApiKey]:
    """Return up to `limit` keys, newest first; `after` continues to older ones, `before` to newer."""
    query = _of(tenant_id)
    if before is not None:
        newer = connection.execute(query.where(_k.id > before).order_by(_k.id).limit(limit))
        return [ApiKey(*row) for row in reversed(newer.all())]
    if after is not None:
        query = query.where(_k.id < after)
    return [ApiKey(*row) for row in connection.execute(query.order_by(_k.id.desc()).limit(limit))]


def get(connection: Connection, tenant_id: UUID, key_id: UUID) -> ApiKey | None:
    """Return one key."""
    row = connection.execute(_one(tenant_id, key_id)).one_or_none()
    return ApiKey(*row) if row else None


def revoke(connection: Connection, tenant_id: UUID, key_id: UUID) -> bool:
    """Revoke a key from now on; False if the tenant has no such key that is not revoked."""
    changed = connection.execute(
        update(api_keys)
        .where(_k.id == key_id, _k.tenant_id == tenant_id, _k.revoked_at.is_(None))
        .values(revoked_at=func.now())
    )
    return changed.rowcount > 0


def note_uses(connection: Connection, seconds_ago: Mapping[UUID, float]) -> None:
    """Note when keys of any tenant were last used; each is written at most once a minute, whoever notes it."""
    connection.execute(_NOTE, {"keys": list(seconds_ago), "seconds_ago": list(seconds_ago.values())})


_NOTE: Final = text("select note_key_uses(:keys, :seconds_ago)")


def _of(tenant_id: UUID) -> Select[Any]:
    return select(*_SHOWN).where(_k.tenant_id == tenant_id)


def _one(tenant_id: UUID, key_id: UUID) -> Select[Any]:
    return _of(tenant_id).where(_k.id == key_id)


def _in_force() -> ColumnElement[bool]:
    return _k.revoked_at.is_(None) & or_(_k.expires_at.is_(None), _k.expires_at > func.now())
