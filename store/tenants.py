"""Tenants and their API keys.

A key is `key_<id>.<secret>`. The id finds the row; the secret is 256 bits from the system's generator, stored only as
its SHA-256 (a slow hash protects weak secrets; these are not, and it would be a way to burn the API's CPU).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from store import ids
from store.engine import act_for
from store.tables import api_keys, tenants

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from typing import Any
    from uuid import UUID

SCOPES: Final = ("turns:write", "context:read", "audit:read", "admin")


class Tenant(NamedTuple):
    """One product that keeps its conversations here."""

    id: UUID
    name: str


class TenantSettings(NamedTuple):
    """A tenant and the policy overrides that were set for it."""

    id: UUID
    name: str
    policy: Mapping[str, Any]
    created_at: datetime


class ApiKey(NamedTuple):
    """What is known of a key once its secret is gone."""

    id: UUID
    tenant_id: UUID
    name: str
    scopes: Sequence[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


def hash_secret(secret: str) -> bytes:
    """Return what is stored of a secret."""
    return hashlib.sha256(secret.encode()).digest()


def split_key(key: str) -> tuple[UUID, str] | None:
    """Return the id and the secret of a presented key, or None if it has not the shape of one."""
    name, _, secret = key.partition(".")
    identifier = ids.parse("key", name)
    return (identifier, secret) if identifier and secret else None


def secret_matches(secret: str, stored_hash: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(hash_secret(secret), stored_hash)


def create_tenant(connection: Connection, name: str, policy: Mapping[str, Any] | None = None) -> Tenant:
    """Return the tenant of that name, made if there is none; the rest of the transaction is on its behalf."""
    identifier = ids.new_id()
    act_for(connection, identifier)
    connection.execute(
        upsert(tenants)
        .values(id=identifier, name=name, policy=dict(policy or {}))
        .on_conflict_do_nothing(index_elements=[tenants.c.name])
    )
    tenant = find_tenant(connection, name)
    assert tenant is not None  # noqa: S101 - made here, or by somebody else before
    return tenant


def find_tenant(connection: Connection, name: str) -> Tenant | None:
    """Return the tenant of that name; the rest of the transaction is on its behalf."""
    row = connection.execute(select(tenants.c.id, tenants.c.name).where(tenants.c.name == name)).one_or_none()
    if row is None:
        return None
    act_for(connection, row.id)
    return Tenant(*row)


def named(connection: Connection, name: str | None = None) -> list[Tenant]:
    """Return the tenant of that name, or all of them, as far as the connection's login may see them."""
    query = select(tenants.c.id, tenants.c.name).order_by(tenants.c.name)
    rows = connection.execute(query if name is None else query.where(tenants.c.name == name))
    return [Tenant(*row) for row in rows]


def settings_of(connection: Connection, tenant_id: UUID) -> TenantSettings:
    """Return what is set for a tenant."""
    return TenantSettings(*connection.execute(select(*_SETTINGS).where(tenants.c.id == tenant_id)).one())


def set_policy(connection: Connection, tenant_id: UUID, policy: Mapping[str, Any]) -> TenantSettings:
    """Replace a tenant's policy overrides; its conversations follow with the next check of each."""
    statement = update(tenants).where(tenants.c.id == tenant_id).values(policy=dict(policy)).returning(*_SETTINGS)
    return TenantSettings(*connection.execute(statement).one())


def create_api_key(
    connection: Connection, tenant_id: UUID, name: str, scopes: Sequence[str] = SCOPES
) -> tuple[ApiKey, str]:
    """Make a key; return its row and the key itself, which nobody can show again."""
    identifier, secret = ids.new_id(), secrets.token_urlsafe(32)
    row = connection.execute(
        insert(api_keys)
        .values(
            id=identifier,
            tenant_id=tenant_id,
            name=name,
            scopes=list(scopes),
            secret_hash=hash_secret(secret),
        )
        .returning(*_KEY)
    ).one()
    return ApiKey(*row), f"{ids.external('key', identifier)}.{secret}"


def list_api_keys(connection: Connection, tenant_id: UUID) -> list[ApiKey]:
    """Return a tenant's keys, oldest first."""
    rows = connection.execute(select(*_KEY).where(api_keys.c.tenant_id == tenant_id).order_by(api_keys.c.id))
    return [ApiKey(*row) for row in rows]


def revoke_api_key(connection: Connection, tenant_id: UUID, key_id: UUID) -> bool:
    """Revoke a key from now on; False if the tenant has no such key in force."""
    changed = connection.execute(
        update(api_keys)
        .where(api_keys.c.id == key_id, api_keys.c.tenant_id == tenant_id, api_keys.c.revoked_at.is_(None))
        .values(revoked_at=func.now())
    )
    return changed.rowcount > 0


_SETTINGS: Final = (tenants.c.id, tenants.c.name, tenants.c.policy, tenants.c.created_at)
_KEY: Final = (
    api_keys.c.id,
    api_keys.c.tenant_id,
    api_keys.c.name,
    api_keys.c.scopes,
    api_keys.c.created_at,
    api_keys.c.expires_at,
    api_keys.c.revoked_at,
)
