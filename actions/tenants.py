"""The tenant: its policy, what it may spend and what it has spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from actions.input.checks import read_changes, read_summarizer_model
from actions.types.core import TenantOut
from actions.types.usage import UsageOut, usage_out
from compaction.overrides import in_force, policy_warnings
from runtime import ids
from store.operations.statistics import unpriced_calls
from store.tenants import budgets, tenants
from store.tenants.budgets import Budget
from store.tenants.limits import limits_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.caller import Caller
    from runtime.settings import Settings
    from store.tenants.tenants import TenantSettings


async def read_tenant(caller: Caller) -> TenantOut:
    """Return the tenant as it is stored at this moment."""
    return tenant_out(await caller.run(tenants.settings_of), caller.services.settings.policy)


async def change_tenant(caller: Caller, wanted: Mapping[str, Any]) -> TenantOut:
    """Change the tenant's policy overrides key by key; raise the problem that they have."""
    if not wanted:
        return await read_tenant(caller)
    read_summarizer_model(wanted.get("policy"), caller.services.settings)
    defaults = caller.services.settings.policy
    changed = await caller.run(_change, wanted, defaults)
    caller.services.authenticator.forget(caller.tenant_id)
    return tenant_out(changed, defaults)


def _change(
    connection: Connection, tenant_id: UUID, wanted: Mapping[str, Any], defaults: Mapping[str, Any]
) -> TenantSettings:
    # Locked: what another change makes meanwhile is not taken back by this one.
    stored = tenants.settings_of(connection, tenant_id, lock=True).policy
    chosen = read_changes(wanted.get("policy", {}), wanted.get("policy_preset"), stored, defaults)
    return tenants.set_policy(connection, tenant_id, chosen)


def tenant_out(row: TenantSettings, defaults: Mapping[str, Any]) -> TenantOut:
    """Return a tenant as its clients see it."""
    policy, _, ignored = in_force(defaults, row.policy)
    return TenantOut(
        id=ids.external("ten", row.id),
        name=row.name,
        policy=msgspec.to_builtins(policy),
        policy_overrides=dict(row.policy),
        warnings=[*ignored, *policy_warnings(policy)],
        created_at=row.created_at,
    )


def usage(connection: Connection, tenant_id: UUID, settings: Settings, days: int) -> UsageOut:
    """Return what the tenant spends on models, today and on days before, and what it may."""
    own = limits_of(connection, tenant_id)
    today = budgets.today(connection, tenant_id, Budget.of(settings))
    listed = budgets.days(connection, tenant_id, days)
    unpriced = unpriced_calls(connection, tenant_id, (today.day - listed[-1].day).days + 1) if listed else {}
    return usage_out(
        today,
        listed,
        unpriced,
        rate_limit_key=(settings.rate_limit_key if own.rate_limit_key is None else own.rate_limit_key) or None,
        rate_limit_tenant=(settings.rate_limit_tenant if own.rate_limit_tenant is None else own.rate_limit_tenant)
        or None,
    )
