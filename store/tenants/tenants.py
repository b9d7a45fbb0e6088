"""Tenants: found, made, and the policy overrides that are set for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import Connection, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from runtime import ids
from store.engine import act_for
from store.tables import tenants

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from typing import Any
    from uuid import UUID


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


def create_tenant(connection: Connection, name: str) -> Tenant:
    """Return the tenant of that name, made if there is none; the rest of the transaction is on its behalf.

    Raise ValueError for a blank name, and for one that is an id: a token that names it would mean that id's tenant.
    """
    if not name.strip():
        raise ValueError("a tenant's name is not blank")
    if ids.parse("ten", name) is not None:
        raise ValueError("this is the id of a tenant, not a name")
    identifier = ids.new_id()
    act_for(connection, identifier)
    connection.execute(
        upsert(tenants).values(id=identifier, name=name).on_conflict_do_nothing(index_elements=[tenants.c.name])
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


def lock(connection: Connection, tenant_id: UUID) -> None:
    """Have nobody else count what the tenant has until the transaction ends: two that do at once would both add one."""
    connection.execute(select(tenants.c.id).where(tenants.c.id == tenant_id).with_for_update(key_share=True))


def settings_of(connection: Connection, tenant_id: UUID, *, lock: bool = False) -> TenantSettings:
    """Return what is set for a tenant, locked against other changes of it if wanted."""
    query = select(*_SETTINGS).where(tenants.c.id == tenant_id)
    return TenantSettings(*connection.execute(query.with_for_update(key_share=True) if lock else query).one())


def set_policy(connection: Connection, tenant_id: UUID, policy: Mapping[str, Any]) -> TenantSettings:
    """Replace a tenant's policy overrides; its conversations follow with the next check of each."""
    statement = update(tenants).where(tenants.c.id == tenant_id).values(policy=dict(policy)).returning(*_SETTINGS)
    return TenantSettings(*connection.execute(statement).one())


_SETTINGS: Final = (tenants.c.id, tenants.c.name, tenants.c.policy, tenants.c.created_at)
