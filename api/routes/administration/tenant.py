"""The tenant behind the key: the policy that its conversations begin from, and the presets there are."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, get, patch
from litestar.params import PathParameter

from actions import tenants
from actions.auth.principals import Principal
from actions.errors import InvalidError
from actions.types.core import PresetOut, TenantOut, TenantPatch
from api.auth.guards import requires
from api.callers import caller_of
from api.http.bodies import read_body
from api.schema import examples
from api.schema.documentation import operation, problems
from compaction.policy import PolicyError
from compaction.presets import preset, window_named
from runtime.errors import RequestError
from runtime.http.problem_types import EVERY_BODY

WindowName = Annotated[
    str, PathParameter(description="A model whose window is known, or tokens: `200000`, `200k`, `1m`.")
]


@get("/tenant", guards=[requires("admin")], summary="Read the tenant", responses=problems())
async def get_tenant(request: Request[Principal, Any, Any]) -> TenantOut:
    """Answer with the tenant's policy, as it is stored at this moment."""
    return await tenants.read_tenant(caller_of(request))


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
    wanted = msgspec.to_builtins(await read_body(request, TenantPatch))
    return await tenants.change_tenant(caller_of(request), wanted)


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
        raise RequestError("not_found", "No window is known of this model; a number of tokens is taken as well.")
    try:
        return PresetOut(window=window, policy=preset(window))
    except PolicyError as error:
        raise InvalidError(error.detail, "window_or_model") from None
