"""The tenant behind the key: the policy that its conversations begin from, and the presets there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import Request, get, patch
from litestar.params import PathParameter

from api.auth.guards import requires
from api.auth.principals import Principal
from api.http.bodies import read_body, read_changes
from api.http.problem_types import EVERY_BODY
from api.http.problems import ProblemError, invalid
from api.schema import examples
from api.schema.documentation import operation, problems
from api.schema.types import PresetOut, TenantOut, TenantPatch
from compaction.overrides import in_force, policy_warnings
from compaction.policy import PolicyError
from compaction.presets import preset, window_named
from runtime import ids
from store.tenants import tenants

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from sqlalchemy import Connection

    from api.services import Services
    from store.tenants.tenants import TenantSettings

WindowName = Annotated[
    str, PathParameter(description="A model whose window is known, or tokens: `200000`, `200k`, `1m`.")
]


@get("/tenant", guards=[requires("admin")], summary="Read the tenant", responses=problems())
async def get_tenant(request: Request[Principal, Any, Any]) -> TenantOut:
    """Answer with the tenant's policy, as it is stored at this moment."""
    services: Services = request.app.state.services
    tenant = request.user.tenant_id
    return tenant_out(await services.run(tenant, tenants.settings_of, tenant), services.settings.policy)


@patch(
    "/tenant",
    guards=[requires("admin")],
    summary="Change the tenant",
    operation_class=operation(TenantPatch, example=examples.TENANT_PATCH),
    responses=problems(*EVERY_BODY),
)
async def change_tenant(request: Request[Principal, Any, Any]) -> TenantOut:
    """Change the tenant's policy overrides, key by key; each conversation follows with its next check.

    Other processes of the API take some seconds to notice.
    """
    services: Services = request.app.state.services
    wanted = msgspec.to_builtins(await read_body(request, TenantPatch))
    tenant, defaults = request.user.tenant_id, services.settings.policy
    if not wanted:
        return tenant_out(await services.run(tenant, tenants.settings_of, tenant), defaults)
    changed = await services.run(tenant, _change, tenant, wanted, defaults)
    services.authenticator.forget(tenant)
    return tenant_out(changed, defaults)


def _change(
    connection: Connection, tenant: UUID, wanted: Mapping[str, Any], defaults: Mapping[str, Any]
) -> TenantSettings:
    # Locked: what another change makes meanwhile is not taken back by this one.
    stored = tenants.settings_of(connection, tenant, lock=True).policy
    chosen = read_changes(wanted.get("policy", {}), wanted.get("policy_preset"), stored, defaults)
    return tenants.set_policy(connection, tenant, chosen)


@get(
    "/policy-presets/{window_or_model:str}",
    guards=[requires("context:read")],
    summary="Read a policy preset",
    responses=problems("not_found"),
)
async def get_policy_preset(window_or_model: WindowName) -> PresetOut:
    """Answer with the policy overrides that fit a context window; nothing is changed."""
    window = window_named(window_or_model)
    if window is None:
        raise ProblemError(404, "not_found", "No window is known of this model; a number of tokens is taken as well.")
    try:
        return PresetOut(window=window, policy=preset(window))
    except PolicyError as error:
        raise invalid(error.detail, "window_or_model") from None


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
