"""What the operator allows a tenant: how many requests, and how much of models.

Only the owner of the database may set it. The services' role reads it, so that no key of a tenant can raise its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, func, select, text, update

from store.tables import tenants, waiting_summaries

if TYPE_CHECKING:
    from datetime import datetime
    from decimal import Decimal
    from uuid import UUID


class TenantLimits(NamedTuple):
    """Limits of one tenant; None = the installation's, empty or 0 = none."""

    rate_limit_key: str | None = None
    """Requests of each of its keys, as `600/minute`."""
    rate_limit_tenant: str | None = None
    """Requests of all its keys together."""
    daily_model_tokens: int | None = None
    daily_model_cost_usd: Decimal | None = None


class RateOverride(NamedTuple):
    """Rate limits of one tenant, as far as they are not the installation's."""

    tenant_id: UUID
    per_key: str | None
    per_tenant: str | None
    changed_at: datetime


_LIMITS = tuple(tenants.c[name] for name in TenantLimits._fields)


def limits_of(connection: Connection, tenant_id: UUID) -> TenantLimits:
    """Return what is set for a tenant."""
    return TenantLimits(*connection.execute(select(*_LIMITS).where(tenants.c.id == tenant_id)).one())


def set_limits(connection: Connection, tenant_id: UUID, changes: dict[str, Any]) -> TenantLimits:
    """Change a tenant's limits, as the owner of the database; what waits for another day's budget is tried at once."""
    row = connection.execute(
        update(tenants)
        .where(tenants.c.id == tenant_id)
        # The time of the statement: a process that reads what has changed since must not pass over it.
        .values(**changes, limits_changed_at=func.clock_timestamp())
        .returning(*_LIMITS)
    ).one()
    connection.execute(
        update(waiting_summaries)
        .where(waiting_summaries.c.tenant_id == tenant_id, waiting_summaries.c.done_at.is_(None))
        .values(not_before=func.now())
    )
    return TenantLimits(*row)


def rate_limits_since(connection: Connection, since: datetime) -> list[RateOverride]:
    """Return the rate limits of any tenant that were set after `since`."""
    rows = connection.execute(text("select * from rate_limits_since(:since)"), {"since": since})
    return [RateOverride(*row) for row in rows]
